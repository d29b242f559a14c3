"""A separate checkout for running commands as the documents show them."""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.documents.shown import Command, alike
from tests.support.preloaded import ROOT

#: Longest wait for one command, and for the condition of a command that begins with `sleep` (seconds).
_PATIENCE_S, _REPEATED_S = 600.0, 600.0
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
_SLEEP = re.compile(r"^sleep \d+; ")
#: Variables of the person who runs the tests.
_OWN = ("LETHE_", "PYTEST_", "DATABASE_URL", "REDIS_URL", "PYTHONPATH")
_DONE = "the command has ended with"


def checkout(folder: Path) -> Path:
    """Copy this checkout to `folder`, with the tests' environment set up."""
    folder.mkdir()
    linked = ("benchmarks", "lethe_client", "migrations", "model_store", "projector", "service", "tests")
    for name in linked:
        (folder / name).symlink_to(ROOT / name)
    served = ("requirements.txt", "requirements-downloads.txt", "requirements-tables.txt")
    tested = ("requirements-traces.txt", "requirements-dev.txt")
    for name in ("lethe", "pyproject.toml", *served, *tested):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    pins = b"".join((ROOT / name).read_bytes() for name in served)
    (folder / ".venv" / "installed").write_bytes(pins)
    (folder / ".venv" / "installed-dev").write_bytes(pins + b"".join((ROOT / name).read_bytes() for name in tested))
    return folder


class Newcomer:
    """A user at a shell in a folder, who types the commands of the pages.

    Example names in a page (an address, a folder, a request id) are replaced by the real ones.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], replaced: Mapping[str, str]) -> None:
        self._replaced = dict(replaced)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=kept | dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def follow(self, command: Command) -> str | None:
        """Run the command. Returns what was wrong, unless it ends and prints as the page shows.

        A command that begins with a wait is repeated until it succeeds.
        """
        text = _SLEEP.sub("", command.text)
        until = time.monotonic() + _REPEATED_S
        while True:
            status, printed = self.typed(text)
            right = (status != 0) == ("error: " in command.output)
            right = right and (not command.output or alike(command.output, printed))
            if right or text == command.text or time.monotonic() > until:
                break
        self._replaced |= dict(zip(_ID.findall(command.output), _ID.findall(printed), strict=False))
        return None if right else f"{command}\nended with {status} and printed\n{printed}\nnot\n{command.output}"

    def typed(self, text: str) -> tuple[int, str]:
        """Run a text once, with example names replaced. Returns its status and output."""
        for name, here in self._replaced.items():
            text = text.replace(name, here)
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{text}\nprintf '\\n{_DONE} %s\\n' $?\n".encode())
        self._shell.stdin.flush()
        printed, until = b"", time.monotonic() + _PATIENCE_S
        while (ended := re.search(rf"\n{_DONE} (\d+)\n".encode(), printed)) is None:
            ready, _, _ = select.select([self._shell.stdout], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"{text}\ndid not end within {_PATIENCE_S:.0f} s, and printed\n{printed.decode()}"
            piece = os.read(self._shell.stdout.fileno(), 1 << 16)
            assert piece, f"{text}\nended the shell, and printed\n{printed.decode()}"
            printed += piece
        return int(ended[1]), printed[: ended.start()].decode()

    def leave(self) -> None:
        """End the shell and its remaining processes."""
        os.killpg(self._shell.pid, signal.SIGTERM)
        self._shell.communicate()
