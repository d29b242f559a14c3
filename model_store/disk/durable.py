"""Changes of files that survive a crash: written under another name, synced, renamed, and the folder synced.

A wait for the disk takes longer than all the rest, and the disk takes many at once: changes that need no order among
themselves are made as `durable_changes`. Every change of the store goes through these functions. Files are readable by
their owner alone, since they hold personal data.
"""

import contextlib
import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model_store.errors import StoreDamaged

_FILE_MODE = 0o600
#: What opening a file says of a link, of a folder to be written to, and of a device or socket.
_NOT_PLAIN = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})
_FOLDER_MODE = 0o700
#: Waits at the same time.
_AT_ONCE = 4
#: Parts of a file that one call overwrites, the most that the kernel takes at once, and the longest of them (bytes).
_MOST_SPANS = 1024
_SPAN_BYTES = 4096
#: What to do about a folder that cannot be read, and for which there is no backup.
TRAIN_AGAIN = (
    "train the model again, with the same `--name`; where this folder was served, put the new one in its place and run "
    "`./lethe recover`, which repeats all deletions."
)
_RESTORE = f"Restore the model's folder and the database from the same backup, or {TRAIN_AGAIN}"


def damaged(path: Path, what: str) -> StoreDamaged:
    """The error for a file of the store that is not as it was written; `what` completes "<path> …"."""
    return StoreDamaged(f"{path} {what}.", _RESTORE)


def open_plain(path: Path, flags: int) -> int:
    """A descriptor of a regular file; StoreDamaged when it is missing, or is a link, a folder or a device."""
    try:
        # Without waiting for whoever writes into a pipe.
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise damaged(path, "is missing") from error
    except OSError as error:
        if error.errno not in _NOT_PLAIN:
            raise
        raise damaged(path, "is not a regular file") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise damaged(path, "is not a regular file")
    return descriptor


def read_file(path: Path) -> bytes:
    """All bytes of a file; StoreDamaged when it is missing or no regular file."""
    with open(open_plain(path, os.O_RDONLY), "rb") as file:
        return file.read()


def read_range(path: Path, out: NDArray[np.uint8], *, offset: int, file_bytes: int) -> None:
    """Fills `out` from byte `offset` of a file that must be `file_bytes` long; StoreDamaged when it is not."""
    descriptor = open_plain(path, os.O_RDONLY)
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
    with durable_changes() as changes:
        changes.write(path, parts)


class DurableChanges:
    """Changes of files that wait for the disk at once; none of them is durable before another. See `durable_changes`.

    A file that has lost its last name gives its space back, which waits for the disk too, once nobody holds it open. So
    it is held until the others wait.
    """

    def __init__(self) -> None:
        self._changed: list[int] = []
        self._held: list[int] = []
        self._folders: dict[Path, None] = {}

    def write(self, path: Path, parts: Iterable[bytes | memoryview]) -> None:
        """Writes a file, over any of that name (its folder is not synced)."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
        self._changed.append(descriptor)
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(descriptor, view) :]

    def name(self, folder: Path) -> None:
        """The names that files have in it by the end are durable too."""
        self._folders[folder] = None

    def overwrite(self, path: Path, slots: NDArray[np.int64], *, slot_bytes: int, fill: int) -> None:
        """Fills the given slots of a file of equal slots with the byte `fill`, in place.

        `slots` are (k,). No other byte is written, so that nothing comes back that somebody else has blanked meanwhile.
        Writing the same slots again changes nothing, so a crash in between is mended by repeating the call.
        """
        descriptor = open_plain(path, os.O_RDWR)
        self._changed.append(descriptor)
        if slots.size and os.fstat(descriptor).st_size < (int(slots.max()) + 1) * slot_bytes:
            raise damaged(path, "is too short")
        blank(descriptor, slots, slot_bytes=slot_bytes, fill=fill)

    def rename(self, source: Path, target: Path) -> None:
        """Renames within one folder, over any file of the new name."""
        self._hold(target)
        source.rename(target)
        self._folders[target.parent] = None

    def remove(self, path: Path) -> None:
        """Unlinks a file; one that is gone already is fine."""
        self._hold(path)
        path.unlink(missing_ok=True)
        self._folders[path.parent] = None

    def remove_tree(self, path: Path) -> None:
        """Removes a folder with everything in it, deepest first."""
        for entry in sorted(path.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                self.remove_tree(entry)
            else:
                self.remove(entry)
        self._hold(path)
        path.rmdir()
        self._folders.pop(path, None)
        self._folders[path.parent] = None

    def wait(self) -> None:
        """Waits for all of it."""
        folders = [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in self._folders]
        self._changed += folders
        held, self._held = self._held, []
        at_once([*(partial(os.fsync, each) for each in self._changed), *(partial(os.close, each) for each in held)])

    def close(self) -> None:
        """Lets go of all files, whatever became of them."""
        while self._changed or self._held:
            os.close((self._changed or self._held).pop())

    def _hold(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._held.append(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))


@contextlib.contextmanager
def durable_changes() -> Iterator[DurableChanges]:
    """Changes of files that are durable once the block has ended; after an error in it any of them may be lost."""
    changes = DurableChanges()
    try:
        yield changes
        changes.wait()
    finally:
        changes.close()


def at_once(jobs: Sequence[Callable[[], None]]) -> None:
    """Does what only waits, several at a time; raises what the first that failed has raised, once all have ended."""
    if len(jobs) == 1:
        jobs[0]()
        return
    under_way = [_threads(os.getpid()).submit(job) for job in jobs]
    # The caller closes their files after an error too, and others are given the descriptors' numbers then.
    wait(under_way)
    for done in under_way:
        done.result()


@cache
def _threads(_process: int) -> ThreadPoolExecutor:
    # Kept, because to begin them takes longer than what they wait for; and of one process, since a fork has none.
    return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="disk")


def replace_file(path: Path, data: bytes, *, temporary: str) -> None:
    """Makes `path` hold `data`, in one step for whoever reads it; `temporary` is a name in the same folder."""
    unfinished = path.parent / temporary
    write_file(unfinished, [data])
    rename(unfinished, path)


def rename(source: Path, target: Path) -> None:
    """Renames within one folder, over any file of the new name, and syncs the folder."""
    source.rename(target)
    sync(target.parent)


def blank(descriptor: int, slots: NDArray[np.int64], *, slot_bytes: int, fill: int) -> None:
    """Fills slots of an open file with the byte `fill`, and writes no other byte; the caller syncs the file.

    Through a mapping, because edges lie in no order and a call to the system for each of them takes longer than all
    the rest. It is the kernel that writes into it: where the file system cannot give a page (a full disk under a file
    whose blocks are shared with a copy of it, a block that cannot be read), it answers with an error, which a write
    of this process to the same page would not survive (SIGBUS).

    Raises:
        OSError: a part of the file cannot be written; others may have been.
    """
    if slots.size == 0:
        return
    firsts, ends = _spans(np.unique(slots), slot_bytes)
    source = os.memfd_create("blank", os.MFD_CLOEXEC)
    try:
        os.write(source, bytes([fill]) * min(slots.size * slot_bytes, _MOST_SPANS * _SPAN_BYTES))
        with mmap.mmap(descriptor, 0) as mapped:
            for start in range(0, firsts.size, _MOST_SPANS):
                some = slice(start, start + _MOST_SPANS)
                _read_into(mapped, firsts[some], ends[some], source)
    finally:
        os.close(source)


def _spans(slots: NDArray[np.int64], slot_bytes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First byte and end of each run of slots, which are sorted and different, cut to at most `_SPAN_BYTES`."""
    breaks = np.flatnonzero(np.diff(slots) > 1)
    firsts = slots[np.concatenate([[0], breaks + 1])] * slot_bytes
    ends = (slots[np.concatenate([breaks, [slots.size - 1]])] + 1) * slot_bytes
    cuts = -(-(ends - firsts) // _SPAN_BYTES)
    within = np.arange(cuts.sum()) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    begins = np.repeat(firsts, cuts) + within * _SPAN_BYTES
    return begins, np.minimum(begins + _SPAN_BYTES, np.repeat(ends, cuts))


def _read_into(mapped: mmap.mmap, firsts: NDArray[np.int64], ends: NDArray[np.int64], source: int) -> None:
    """One read from the start of `source` into parts of a mapping."""
    whole = memoryview(mapped)
    parts = [whole[first:end] for first, end in zip(firsts.tolist(), ends.tolist(), strict=True)]
    try:
        done = os.preadv(source, parts, 0)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
        done = 0
    finally:
        # Nothing may refer to the mapping when it is closed.
        parts.clear()
        whole.release()
    if done != int((ends - firsts).sum()):
        raise OSError(errno.EIO, "part of a file to overwrite cannot be reached, or there is no space left")


def make_folder(path: Path) -> None:
    """Makes one folder; its parent must exist and is not synced."""
    path.mkdir(_FOLDER_MODE)


def make_folders(path: Path) -> None:
    """Makes a folder and its missing parents, durably."""
    if not path.exists():
        make_folders(path.parent)
        make_folder(path)
        sync(path.parent)


def sync(path: Path) -> None:
    """Makes what a file holds, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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
