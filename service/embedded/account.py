"""The account that private servers run under: oneself, or `nobody` when started by root."""

import os
import pwd
import sys
from dataclasses import dataclass
from pathlib import Path

from service.errors import EmbeddedServerError

_REMEDY = "Start Lethe as an ordinary user, or set DATABASE_URL and REDIS_URL to servers of your own."


@dataclass(frozen=True)
class Account:
    """Who a server runs as; `uid` and `gid` are None for the account of this process."""

    uid: int | None = None
    gid: int | None = None

    @property
    def is_other(self) -> bool:
        """Whether servers run under another account than this process."""
        return self.uid is not None

    def folder_argument(self, folder: Path) -> str:
        """Return how a server whose working folder is `folder` must name it.

        Another account may be unable to reach a folder below a closed one (LETHE_HOME is 0700, /root is). Root
        enters it before it gives up its rights, and Linux lets a process name its own working folder
        without walking the path to it, so no permissions have to be opened.
        """
        return "/proc/self/cwd" if self.is_other else str(folder)

    def make_folder(self, folder: Path) -> None:
        """Make `folder` (0700) unless it exists, and give it to this account."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if self.uid is not None and self.gid is not None and folder.stat().st_uid != self.uid:
            try:
                os.chown(folder, self.uid, self.gid)
            except OSError as error:
                raise EmbeddedServerError(
                    f"{folder} cannot be given to uid {self.uid}: {error.strerror}.", _REMEDY
                ) from error

    def can_run(self, program: Path) -> bool:
        """Tell from the permission bits whether this account may read and execute `program`."""
        real = program.resolve()
        return all(self._permits(step) for step in {program, *program.parents, real, *real.parents})

    def _permits(self, path: Path) -> bool:
        if self.uid is None:
            return os.access(path, os.R_OK | os.X_OK) if path.is_file() else os.access(path, os.X_OK)
        status = path.stat()
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid == self.gid else 0
        needed = 0o5 if path.is_file() else 0o1
        return (status.st_mode >> shift) & needed == needed


def server_account(data: Path) -> Account:
    """Return the account for servers whose data lie in `data`, which need not exist yet.

    Postgres refuses to run as root, so root starts servers as the owner of existing data, else as `nobody`.
    Raises EmbeddedServerError when this process can do neither.
    """
    owner = data.stat().st_uid if data.exists() else None
    if os.geteuid() != 0:
        if owner not in (None, os.geteuid()):
            raise EmbeddedServerError(
                f"{data} belongs to uid {owner}, and this process runs as uid {os.geteuid()}.",
                "Start Lethe as the user that made it, or choose another LETHE_HOME.",
            )
        return Account()
    if not sys.platform.startswith("linux"):
        raise EmbeddedServerError("Private servers cannot be started by root on this system.", _REMEDY)
    try:
        entry = pwd.getpwuid(owner) if owner else pwd.getpwnam("nobody")
    except KeyError:
        who = f"uid {owner}, which owns {data}," if owner else "`nobody`"
        raise EmbeddedServerError(f"Postgres does not run as root, and {who} is not in /etc/passwd.", _REMEDY) from None
    return Account(entry.pw_uid, entry.pw_gid)
