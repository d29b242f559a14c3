"""What the guardian is told about one server."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.embedded.account import Account


@dataclass(frozen=True)
class ServerPlan:
    """How to start and stop one server."""

    name: str
    argv: list[str]
    #: The server's working folder, which holds its data.
    folder: Path
    log: Path
    account: Account
    #: The gentlest first. The kernel sends the first one when the guardian dies.
    stop_signals: tuple[signal.Signals, ...]
    #: What the server reads on standard input; never seen in the list of processes.
    stdin: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the plan in the guardian's form."""
        return {
            "name": self.name,
            "argv": self.argv,
            "folder": str(self.folder),
            "log": str(self.log),
            "uid": self.account.uid,
            "gid": self.account.gid,
            "stop_signals": [int(number) for number in self.stop_signals],
            "stdin": self.stdin,
            "environment": environment(),
        }


def environment() -> dict[str, str]:
    """Return the environment of servers: nothing of ours, where keys and passwords may stand."""
    kept = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR")
    return {"LC_ALL": "C", "TZ": "UTC"} | {name: os.environ[name] for name in kept if name in os.environ}
