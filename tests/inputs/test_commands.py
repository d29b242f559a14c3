"""What is typed is used, or refused by its name; no command ends with a traceback."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from service.cli.exit_status import ExitStatus
from tests.support.clients.command_line import Ran
from tests.support.everyday import everyday
from tests.support.inputs.command_lines import Line, commands, good, lines_with_files, wrong_lines
from tests.support.inputs.typed import Typed
from tests.support.inputs.variations import Sweep, fault_of

COMMANDS = commands()
#: Lines of an everyday run.
EVERYDAY = 60


@pytest.fixture
def files(tmp_path: Path) -> Mapping[str, str]:
    """What stands for files in a line that is right."""
    named = tmp_path / "ids.txt"
    named.write_text("1\n")
    return {"{file}": str(named), "{new}": str(tmp_path / "new")}


@pytest.mark.parametrize("most", everyday((1, 6), 1))
def test_an_option_is_used_or_refused_by_name(typed: Typed, files: Mapping[str, str], most: int) -> None:
    sweep = Sweep("options")
    lines = [line for name in COMMANDS for line in wrong_lines(name, COMMANDS[name], files, sweep, most)]
    for line in sweep.cases(lines, None if most > 1 else EVERYDAY):
        if what := judged(line, typed(line)):
            sweep.find(line, what)
    sweep.judge()


def judged(line: Line, ran: Ran | str) -> str | None:
    """What is wrong with how a command ended; None when nothing is."""
    if isinstance(ran, str):
        return f"a traceback ({ran[:200]})"
    if not line.wrong:
        return None
    if ran.status not in (ExitStatus.DONE, ExitStatus.USAGE):
        return f"status {ran.status}, and not that of a wrong call: {ran.stderr.strip()[-200:]}"
    return fault_of(ran.status != ExitStatus.DONE, ran.stderr, *line.wrong)


@pytest.mark.slow
def test_a_file_is_read_or_refused_by_its_name(typed: Typed, files: Mapping[str, str], tmp_path: Path) -> None:
    sweep = Sweep("files")
    given = strange_files(tmp_path / "given")
    # Folders that `serve` is given are looked at by the processes that it starts.
    named = [name for name in COMMANDS if name != "serve"]
    lines = [each for name in named for each in lines_with_files(name, COMMANDS[name], files, given)]
    for line, what in sweep.cases(lines):
        ran = typed(line)
        if isinstance(ran, str):
            sweep.find(line, f"{what} file: a traceback ({ran[:200]})")
        elif ran.status == ExitStatus.DONE and what not in ("missing", "folder"):
            sweep.find(line, f"{what} file: taken: {ran.stdout[:200]}")
    sweep.judge()


def strange_files(folder: Path) -> dict[str, Path]:
    """Files of every kind that nothing is in, by what they are."""
    folder.mkdir()
    contents = {
        "empty": b"",
        "blank": b"\n \n\t\n",
        "binary": b"\x89PNG\r\n\xff\xfe\x00",
        "UTF-16": "1\n2\n".encode("utf-16"),
        "null": b"null\n",
        "list": b"[]\n",
        "object": b"{}\n",
        "nested": b"[" * 100_000,
        "NUL": b"1\x002\n",
        "long": b"9" * 1_000_000,
        "zip": b"PK\x03\x04" + b"\x00" * 60,
    }
    made = {}
    for what, content in contents.items():
        made[what] = folder / f"{what}.txt"
        made[what].write_bytes(content)
    (folder / "folder").mkdir()
    return made | {"missing": folder / "missing", "folder": folder / "folder"}


def test_the_commands_that_are_swept_are_right_but_for_what_is_wrong_with_them(
    typed: Typed, files: Mapping[str, str]
) -> None:
    for name, parameters in COMMANDS.items():
        ran = typed(Line(good(name, parameters, files)))
        assert isinstance(ran, Ran), (name, ran)
        assert "Usage:" not in ran.stderr, (name, ran)
