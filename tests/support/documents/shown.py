"""The documents' commands in order, with their output."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from tests.support.preloaded import ROOT

#: The pages whose commands are run.
PAGES = [*sorted(path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"), *sorted(ROOT.glob("docs/*.md"))]
_BLOCK = re.compile(r"^( *)```(sh|console)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_HEREDOC = re.compile(r"<<'?(\w+)'?")

#: Replaces text that varies between runs or with the other requests of a batch, before texts are compared.
_ANYTHING = [
    (re.compile(r'"next_cursor": ?"[^"]+"'), '"next_cursor": CURSOR'),
    (re.compile(r'"(explanation|what_was_done)": ?"[^"]*"'), r'"\1": WORDS'),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}"), "ID"),
    (re.compile(r"\w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT"), "TIME"),
    (re.compile(r"\d{4}-\d\d-\d\d(?:[T ](?:[\d:.]*\d(?:Z| UTC))?)?"), "TIME"),
    (re.compile(r"[A-Za-z0-9+/]{40,}=*"), "DIGEST"),
    (re.compile(r"(?<=lethe-canary-)[0-9a-f]{8}"), "TAG"),
    (re.compile(r"(?<![\w.])(?=[0-9a-f]*\d)[0-9a-f]{16,}\b"), "DIGEST"),
    (re.compile(r"\b[0-9a-f]{8}(?: [0-9a-f]{8}){7}\b"), "DIGEST"),
    (re.compile(r"-?\b\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+| × 10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?(?!\w)"), "#"),
    (re.compile(r"# checkpoints?\b"), "# checkpoints"),
    (re.compile(r"\s+"), " "),
]


@dataclass(frozen=True)
class Command:
    """One command of a page, and the output that the page shows; empty if it shows none."""

    page: Path
    line: int
    text: str
    output: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}: {self.text}"


def commands(page: Path) -> list[Command]:
    """Return the commands of all blocks of a page, in order."""
    text = page.read_text()
    found: list[Command] = []
    for block in _BLOCK.finditer(text):
        first = text.count("\n", 0, block.start()) + 2
        lines = dedent(block[3]).splitlines()
        read = _typed if block[2] == "console" else _written
        found += [Command(page, first + at, command, output) for at, command, output in read(lines)]
    return found


def _written(lines: list[str]) -> Iterator[tuple[int, str, str]]:
    """Yield the commands of a script."""
    at = 0
    while at < len(lines):
        end = _end(lines, at)
        if lines[at] and not lines[at].startswith("#"):
            yield at, "\n".join(lines[at:end]), ""
        at = end


def _typed(lines: list[str]) -> Iterator[tuple[int, str, str]]:
    """Yield the commands of a session, after each `$ `, with the lines up to the next."""
    at = 0
    while at < len(lines):
        assert lines[at].startswith("$ "), f"a session begins with a command: {lines[at]}"
        end = _end(lines, at)
        following = next((number for number in range(end, len(lines)) if lines[number].startswith("$ ")), len(lines))
        yield at, "\n".join(lines[at:end])[2:], "\n".join(lines[end:following])
        at = following


def _end(lines: list[str], at: int) -> int:
    """Return the line after the command at `at`, including continued lines and a heredoc."""
    heredoc = _HEREDOC.search(lines[at])
    if heredoc:
        return lines.index(heredoc[1], at) + 1
    while lines[at].endswith("\\"):
        at += 1
    return at + 1


def alike(shown: str, printed: str) -> bool:
    """Whether two outputs are equal except for ids, times, digests, numbers and spaces; `…` matches anything."""
    pieces = [re.escape(piece.strip()) for piece in _general(shown).split("…")]
    return re.fullmatch(r"\s*" + r".*".join(pieces) + r"\s*", _general(printed), re.DOTALL) is not None


def _general(text: str) -> str:
    for pattern, instead in _ANYTHING:
        text = pattern.sub(instead, text)
    return text.strip()
