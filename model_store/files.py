"""Changes of files that survive a crash: written under another name, synced, renamed, and the folder synced.

Every change of the store goes through these functions. Files are readable by their owner alone, since they hold
personal data.
"""

import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model_store.errors import StoreDamaged

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
_RESTORE = "Restore the model's folder and the database from the same backup, or train and import the model again."


def damaged(path: Path, what: str) -> StoreDamaged:
    """The error for a file of the store that is not as it was written; `what` completes "<path> …"."""
    return StoreDamaged(f"{path} {what}.", _RESTORE)


def read_file(path: Path) -> bytes:
    """All bytes of a file; StoreDamaged when it is missing."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise damaged(path, "is missing") from error


def read_range(path: Path, out: NDArray[np.uint8], *, offset: int, file_bytes: int) -> None:
    """Fills `out` from byte `offset` of a file that must be `file_bytes` long; StoreDamaged when it is not."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise damaged(path, "is missing") from error
    try:
        size = os.fstat(descriptor).st_size
        if size != file_bytes:
            raise damaged(path, f"is {size} bytes long instead of {file_bytes}")
        view = out.reshape(-1).data
        while view:
            done = os.preadv(descriptor, [view], offset)
            if done == 0:
                raise damaged(path, f"ends before byte {offset + len(view)}")
            view, offset = view[done:], offset + done
    finally:
        os.close(descriptor)


def write_file(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Writes a file, over any of that name, and syncs it (not its folder)."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
    try:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, *, temporary: str) -> None:
    """Makes `path` hold `data`, in one step for whoever reads it; `temporary` is a name in the same folder."""
    unfinished = path.parent / temporary
    write_file(unfinished, [data])
    rename(unfinished, path)


def rename(source: Path, target: Path) -> None:
    """Renames within one folder, over any file of the new name, and syncs the folder."""
    source.rename(target)
    sync_folder(target.parent)


def overwrite(path: Path, slots: NDArray[np.int64], *, slot_bytes: int, fill: int) -> None:
    """Fills the given slots of a file of equal slots with the byte `fill`, in place, and syncs the file.

    `slots` are (k,). No other byte is written, so that nothing comes back that somebody else has blanked meanwhile.
    Writing the same slots again changes nothing, so a crash in between is mended by repeating the call.
    """
    if slots.size == 0:
        return
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise damaged(path, "is missing") from error
    try:
        if os.fstat(descriptor).st_size < (int(slots.max()) + 1) * slot_bytes:
            raise damaged(path, "is too short")
        blank(descriptor, slots, slot_bytes=slot_bytes, fill=fill)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def blank(descriptor: int, slots: NDArray[np.int64], *, slot_bytes: int, fill: int) -> None:
    """Fills slots of an open file with the byte `fill`, and writes no other byte; the caller syncs the file.

    Through a mapping, because edges lie in no order: a call to the system for each of them takes longer than all the
    rest, and the thread that calls gives up the interpreter every time.
    """
    with mmap.mmap(descriptor, 0) as mapped:
        content = np.frombuffer(mapped, dtype=np.uint8)
        content[: content.size // slot_bytes * slot_bytes].reshape(-1, slot_bytes)[slots] = fill
        # Nothing may refer to the mapping when it is closed.
        del content
        mapped.flush()


def make_folder(path: Path) -> None:
    """Makes one folder; its parent must exist and is not synced."""
    path.mkdir(_FOLDER_MODE)


def make_folders(path: Path) -> None:
    """Makes a folder and its missing parents, durably."""
    if not path.exists():
        make_folders(path.parent)
        make_folder(path)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_file(path: Path) -> None:
    """Unlinks a file; one that is gone already is fine."""
    path.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Removes a folder with everything in it, deepest first; neither it nor its parent is synced."""
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:
            remove_file(entry)
    path.rmdir()
