"""Repeats the calls of api.md in one run against one Lethe, and records their output.

python -m docs.api_calls     serves Cora at port 8000 meanwhile, and writes api.md
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.performance.service.lethe_process import KEY, LetheProcess
from tests.support.documents.newcomer import Newcomer, checkout
from tests.support.documents.shown import Command, commands

PAGE = Path(__file__).parent / "api.md"
#: The settings that the page states at its top.
SETTINGS = {"LETHE_PORT": "8000", "LETHE_MAX_WAIT_MS": "2000", "LETHE_MAX_PREDICTED_NODES": "2"}


def answered(page: str, outputs: list[tuple[Command, str]]) -> str:
    """Return `page` with the output of each command replaced by the new one."""
    lines = page.splitlines()
    for command, output in reversed(outputs):
        first = command.line - 1 + len(command.text.splitlines())
        lines[first : first + len(command.output.splitlines())] = output.strip("\n").splitlines()
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = checkout(Path(temporary) / "lethe")
        home = folder / "var"
        (home / "run").mkdir(parents=True, mode=0o700)
        train = [sys.executable, "-m", "service.cli", "train", "--dataset", "cora", "--canaries", "12"]
        subprocess.run([*train, "--out", str(home / "model")], check=True)
        lethe = LetheProcess(home, SETTINGS)
        try:
            (home / "run" / "admin.key").write_text(KEY)
            newcomer = Newcomer(folder, {"LETHE_KEY": KEY}, {})
            try:
                outputs = [(command, newcomer.typed(command.text)[1]) for command in commands(PAGE)]
            finally:
                newcomer.leave()
        finally:
            lethe.stop()
    PAGE.write_text(answered(PAGE.read_text(), outputs))


if __name__ == "__main__":
    main()
