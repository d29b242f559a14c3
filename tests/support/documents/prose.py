"""The sentences that people read, each with its place, from code, pages, templates and configuration."""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.preloaded import ROOT

#: The packages whose strings and docstrings are held to plain English.
PACKAGES = ("service", "model_store", "projector", "lethe_client", "benchmarks", "examples", "docs", "migrations")
#: What others wrote, or data.
_NOT_OURS = {"vendor", "swagger-ui", "results", "__pycache__"}
_FENCED = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_ATTRIBUTE = re.compile(r'\b(?:title|alt|placeholder|content|(?:aria|data)-label)="([^"]*)"')
_BLOCK_TAG = re.compile(r"</?(?:p|div|h\d|t[dhr]|li|d[dt]|section|summary|caption|br)\b[^>]*>")
_JINJA_TEXT = re.compile(r'"([^"]* [^"]*)"')
_SCRIPT_TEXT = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`')
_SQL_TEXT = re.compile(r"'((?:[^'\n]|'')* (?:[^'\n]|'')*)'")
_Node = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Text:
    """Words on one place, with single spaces; what is filled in later stands as `…`."""

    path: str
    line: int
    words: str


def files(*suffixes: str) -> list[Path]:
    """Our files with one of these suffixes in the packages and in `docker`."""
    found = (path for folder in (*PACKAGES, "docker") for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)
    return sorted(path for path in found if not _NOT_OURS.intersection(path.parts))


def strings() -> Iterator[Text]:
    """Every string literal in Python with a space in it, except docstrings."""
    for path in files(".py"):
        tree = _tree(path)
        skipped = {id(node) for node, _ in _documented(tree)}
        for line, words in _literals(tree, skipped):
            if " " in words:
                yield _text(path, line, words)


def docstrings() -> Iterator[Text]:
    """The docstrings of modules, and of the public classes and functions in them."""
    for path in files(".py"):
        for node, public in _documented(_tree(path)):
            if public:
                yield _text(path, node.lineno, str(node.value))


def pages() -> Iterator[Text]:
    """Each paragraph, row and item of the Markdown pages, without blocks of code; code in a line stands as `…`."""
    for path in [*sorted(ROOT.glob("*.md")), *files(".md")]:
        whole = _FENCED.sub(lambda block: "\n" * block[0].count("\n"), path.read_text())
        whole = re.sub(r"`[^`\n]+`", "…", whole)
        for part in re.finditer(r"(?:^(?!\s*$).+\n?)+?(?=^\s*(?:[|#>-]|\d+\.|$)|\Z)", whole, re.MULTILINE):
            yield _text(path, whole.count("\n", 0, part.start()) + 1, part[0])


def templates() -> Iterator[Text]:
    """What templates show, and the texts in their tags: titles, labels, arguments of macros."""
    for path in files(".html"):
        whole = path.read_text()
        for block in re.finditer(r"\{[{%](.*?)[%}]\}", whole, re.DOTALL):
            for quoted in _JINJA_TEXT.finditer(block[1]):
                yield _text(path, whole.count("\n", 0, block.start() + quoted.start()) + 1, quoted[1])
        bare = re.sub(r"\{#.*?#\}|\{%.*?%\}|<!--.*?-->", _blank, whole, flags=re.DOTALL)
        bare = re.sub(r"\{\{.*?\}\}", "…", bare, flags=re.DOTALL)
        for attribute in _ATTRIBUTE.finditer(bare):
            yield _text(path, bare.count("\n", 0, attribute.start()) + 1, attribute[1])
        start = 0
        for tag in [*_BLOCK_TAG.finditer(bare), None]:
            words = bare[start : tag.start() if tag else None]
            yield _text(path, bare.count("\n", 0, start) + 1, re.sub(r"<[^>]*>", "", words))
            start = tag.end() if tag else start


def scripts() -> Iterator[Text]:
    """The string literals of our JavaScript."""
    for path in files(".js"):
        for number, line in enumerate(path.read_text().split("\n"), 1):
            for quoted in _SCRIPT_TEXT.finditer(re.sub(r"^\s*//.*", "", line)):
                yield _text(path, number, re.sub(r"\$\{[^}]*\}", "…", quoted[1] or quoted[2] or ""))


def configuration() -> Iterator[Text]:
    """The strings of YAML, JSON and SQL with the comments of YAML, and the launcher's texts."""
    for path in [*files(".yml"), *sorted(ROOT.glob("*.yml"))]:
        whole = path.read_text()
        yield from (_text(path, 1, words) for words in _leaves(yaml.safe_load(whole)))
        for block in re.finditer(r"(?:^ *#.*\n)+", whole, re.MULTILINE):
            yield _text(
                path, whole.count("\n", 0, block.start()) + 1, re.sub(r"^ *#", "", block[0], flags=re.MULTILINE)
            )
    launcher = ROOT / "lethe"
    for number, line in enumerate(launcher.read_text().split("\n"), 1):
        for quoted in re.finditer(r"# (.*)|[\"']([^\"']* [^\"']*)[\"']", line):
            yield _text(launcher, number, quoted[1] or quoted[2])
    for path in files(".json"):
        yield from (_text(path, 1, words) for words in _leaves(json.loads(path.read_text())))
    for path in files(".sql"):
        whole = re.sub(r"--.*", "", path.read_text())
        for quoted in _SQL_TEXT.finditer(whole):
            yield _text(path, whole.count("\n", 0, quoted.start()) + 1, quoted[1])


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _text(path: Path, line: int, words: str) -> Text:
    return Text(str(path.relative_to(ROOT)), line, " ".join(words.split()))


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def _documented(node: _Node, public: bool = True) -> Iterator[tuple[ast.Constant, bool]]:
    """Each docstring in a module, and whether everything around it is public."""
    if ast.get_docstring(node, clean=False) is not None:
        statement = node.body[0]
        assert isinstance(statement, ast.Expr)
        assert isinstance(statement.value, ast.Constant)
        yield statement.value, public
    inside = list(ast.iter_child_nodes(node))
    while inside:
        child = inside.pop(0)
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _documented(child, public and not child.name.startswith("_"))
        else:
            inside += ast.iter_child_nodes(child)


def _literals(node: ast.AST, skipped: set[int]) -> Iterator[tuple[int, str]]:
    """Each string in a tree, an f-string as one, by its line."""
    match node:
        case ast.JoinedStr(values=values):
            yield node.lineno, "".join(str(one.value) if isinstance(one, ast.Constant) else "…" for one in values)
            for one in values:
                if isinstance(one, ast.FormattedValue):
                    yield from _literals(one.value, skipped)
        case ast.Constant(value=str(words)) if id(node) not in skipped:
            yield node.lineno, words
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _literals(child, skipped)


def _leaves(value: Any) -> Iterator[str]:
    """Every string with a space in a document of YAML or JSON."""
    match value:
        case dict():
            for one in value.values():
                yield from _leaves(one)
        case list():
            for one in value:
                yield from _leaves(one)
        case str() if " " in value:
            yield value
