"""Small private files, such as keys, written atomically: a crash leaves either the old file or the new one."""

import os
import secrets
import stat
from pathlib import Path

from service.errors import ConfigurationError, KeyMissing


def write_private(path: Path, content: str | bytes) -> None:
    """Replace a file of mode 0600, creating its folder with mode 0700 if needed; durable on return."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make files created, renamed or removed in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def ignore_in_git(folder: Path) -> None:
    """Keep a folder with secrets or personal data out of any Git repository around it."""
    path = folder / ".gitignore"
    if not path.exists():
        write_private(path, "*\n")


KEY_BYTES = 32


def secure_folder(folder: Path, *, create: bool) -> None:
    """Require that `folder` exists and that only its owner may enter it.

    Raises `KeyMissing` when it is absent and `create` is false, and `ConfigurationError` when others may enter it.
    """
    if not folder.is_dir():
        if not create:
            raise KeyMissing(
                f"The key folder {folder} does not exist.", "Restore the folder `keys` of LETHE_HOME from its backup."
            )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(folder.parent)
    require_private(folder)


def require_private(path: Path) -> None:
    """Raise `ConfigurationError` when anyone but the owner may access `path`."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        wanted = "700" if path.is_dir() else "600"
        raise ConfigurationError(
            f"{path} is open to other users (mode {mode:03o}).", f"Run `chmod {wanted} {path}` and start again."
        )


def read_key(path: Path) -> bytes:
    """Return the 32 bytes stored in `path` as 64 hex digits; `KeyMissing` when the file is absent or invalid."""
    try:
        text = path.read_text(encoding="ascii").strip()
        key = bytes.fromhex(text)
    except FileNotFoundError:
        raise KeyMissing(f"The key file {path} does not exist.", "Restore it from the backup of LETHE_HOME.") from None
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise KeyMissing(f"The file {path} does not contain a key (64 hex digits).", "Restore it from its backup.")
    require_private(path)
    return key


def create_key(path: Path) -> None:
    """Write a new random key to `path` unless the file exists; durable on return."""
    create_file(path, secrets.token_hex(KEY_BYTES))


def create_file(path: Path, line: str) -> None:
    """Write `line` to `path`, private to its owner, unless the file exists; durable on return."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            # Unlike a rename, a link never replaces a file that another process has just created.
            path.hardlink_to(temporary)
        except FileExistsError:
            return
    finally:
        temporary.unlink()
        sync_folder(path.parent)
