"""Small files that only their owner reads, written so that a crash leaves the old one or the new."""

import os
from pathlib import Path


def write_private(path: Path, content: str | bytes) -> None:
    """Replace a file of mode 0600, in a folder of mode 0700 that is made if need be; durable on return."""
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
    """Make what was made, renamed or removed in a folder durable."""
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
