"""Command lines as they are typed, run in this process; unlike `CommandLine` it reports what they raise."""

import pytest

from service.cli.main import main
from tests.support.clients.command_line import Ran
from tests.support.inputs.command_lines import Line


class Typed:
    """Types command lines in an empty folder, where the servers that are named do not answer."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, line: Line) -> Ran | str:
        """How the command ended, or what it raised."""
        self._capsys.readouterr()
        try:
            main(line.words)
        except SystemExit as ended:
            printed = self._capsys.readouterr()
            return Ran(int(ended.code or 0), printed.out, printed.err)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a traceback to whoever typed it
            return f"{type(error).__name__}: {error}"
        return "no status"
