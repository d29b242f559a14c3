"""Running the command line inside a test."""

import logging
from dataclasses import dataclass

import pytest
import structlog

from service.cli.main import main


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str


class CommandLine:
    """Runs `lethe …` in this process. Anything but a clean exit fails the test."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Ran:
        self._capsys.readouterr()
        root = logging.getLogger()
        handlers, level, structured = root.handlers[:], root.level, structlog.get_config()
        try:
            with pytest.raises(SystemExit) as ended:
                main([str(argument) for argument in arguments])
        finally:
            # Restores logging, which a command redirects to this test's captured output.
            root.handlers[:] = handlers
            root.setLevel(level)
            structlog.configure(**structured)
        printed = self._capsys.readouterr()
        status = ended.value.code
        assert status is None or isinstance(status, int)
        assert "Traceback" not in printed.err
        return Ran(status or 0, printed.out, printed.err)
