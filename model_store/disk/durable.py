"""Crash-safe file changes: write under another name, sync, rename, and sync the folder.

Waiting for the disk dominates the time, and the disk takes many requests at once. So changes that need no order among
themselves are grouped in `durable_changes`. Every change of the store goes through these functions. Files are readable
by their owner only, since they hold personal data.
"""

import contextlib
import errno
import itertools
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
#: Errors from opening a link, a folder for writing, or a device or socket.
_NOT_PLAIN = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})
_FOLDER_MODE = 0o700
#: Number of concurrent waits.
_AT_ONCE = 4
#: Parts of a file that one call overwrites, the kernel's maximum, and their largest length in bytes.
_MOST_SPANS = 1024
_SPAN_BYTES = 4096
#: Bytes of zeros written at a time.
_SHRED_BYTES = 1 << 16
#: Remedy for an unreadable folder without a backup.
TRAIN_AGAIN = (
    "train the model again, with the same `--name`; where this folder was served, put the new one in its place and run "
    "`./lethe recover`, which repeats all deletions."
)
_RESTORE = f"Restore the model's folder and the database from the same backup, or {TRAIN_AGAIN}"


def damaged(path: Path, what: str) -> StoreDamaged:
    """Return the error for a store file that was altered; `what` completes "<path> …"."""
    return StoreDamaged(f"{path} {what}.", _RESTORE)


def open_plain(path: Path, flags: int) -> int:
    """Return a descriptor of a regular file. Raises StoreDamaged if it is missing, a link, a folder or a device."""
    try:
        # O_NONBLOCK: do not wait for the writer of a pipe.
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
    """Return all bytes of a file. Raises StoreDamaged if it is missing or not a regular file."""
    with open(open_plain(path, os.O_RDONLY), "rb") as file:
        return file.read()


def read_range(path: Path, out: NDArray[np.uint8], *, offset: int, file_bytes: int, grows: bool = False) -> None:
    """Fill `out` from byte `offset` of a file.

    Raises StoreDamaged unless it has `file_bytes` bytes. A file that `grows` may have more.
    """
    descriptor = open_plain(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if size < file_bytes or (size > file_bytes and not grows):
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
    """Write a file, replacing one of that name, and sync it (not its folder)."""
    with durable_changes() as changes:
        changes.write(path, parts)


class DurableChanges:
    """File changes that wait for the disk together; none is durable before the others. See `durable_changes`.

    Closing the last descriptor of a deleted file frees its space, which waits for the disk too. So such files stay open
    until the common wait.
    """

    def __init__(self) -> None:
        self._changed: list[int] = []
        self._held: list[int] = []
        self._folders: dict[Path, None] = {}

    def write(self, path: Path, parts: Iterable[bytes | memoryview]) -> None:
        """Write a file, replacing one of that name (its folder is not synced)."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
        self._changed.append(descriptor)
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(descriptor, view) :]

    def append(self, path: Path, parts: Iterable[bytes | memoryview], *, offset: int) -> None:
        """Write `parts` from byte `offset` of a file, and cut off what follows them."""
        descriptor = open_plain(path, os.O_WRONLY)
        self._changed.append(descriptor)
        if os.fstat(descriptor).st_size < offset:
            raise damaged(path, f"is shorter than {offset} bytes")
        os.ftruncate(descriptor, offset)
        _write_at(descriptor, parts, offset)

    def shred(self, path: Path) -> None:
        """Fill a file with zeros in place, before its removal; a missing file is fine."""
        if not path.exists():
            return
        descriptor = open_plain(path, os.O_WRONLY)
        self._changed.append(descriptor)
        blocks, rest = divmod(os.fstat(descriptor).st_size, _SHRED_BYTES)
        _write_at(descriptor, [*itertools.repeat(bytes(_SHRED_BYTES), blocks), bytes(rest)], 0)

    def name(self, folder: Path) -> None:
        """Make the folder's final names durable too."""
        self._folders[folder] = None

    def overwrite(self, path: Path, slots: NDArray[np.int64], *, slot_bytes: int, fill: int) -> None:
        """Fill the given slots of a file of equal slots with the byte `fill`, in place.

        `slots` are (k,). No other byte is written, so data that another process blanked meanwhile cannot return.
        Repeating the call after a crash completes it, and repeating it again changes nothing.
        """
        descriptor = open_plain(path, os.O_RDWR)
        self._changed.append(descriptor)
        if slots.size and os.fstat(descriptor).st_size < (int(slots.max()) + 1) * slot_bytes:
            raise damaged(path, "is too short")
        blank(descriptor, slots, slot_bytes=slot_bytes, fill=fill)

    def rename(self, source: Path, target: Path) -> None:
        """Rename within one folder, replacing a file of the new name."""
        self._hold(target)
        source.rename(target)
        self._folders[target.parent] = None

    def remove(self, path: Path) -> None:
        """Remove a file. A missing file is fine."""
        self._hold(path)
        path.unlink(missing_ok=True)
        self._folders[path.parent] = None

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with everything in it, deepest first."""
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
        """Wait until all changes are durable."""
        folders = [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in self._folders]
        self._changed += folders
        held, self._held = self._held, []
        at_once([*(partial(os.fsync, each) for each in self._changed), *(partial(os.close, each) for each in held)])

    def close(self) -> None:
        """Close all files, regardless of their state."""
        while self._changed or self._held:
            os.close((self._changed or self._held).pop())

    def _hold(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._held.append(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))


@contextlib.contextmanager
def durable_changes() -> Iterator[DurableChanges]:
    """Group file changes that are durable once the block ends. After an error any of them may be lost."""
    changes = DurableChanges()
    try:
        yield changes
        changes.wait()
    finally:
        changes.close()


def at_once(jobs: Sequence[Callable[[], None]]) -> None:
    """Run waiting jobs concurrently. After all have ended, raise the error of the first failed one, if any."""
    if len(jobs) == 1:
        jobs[0]()
        return
    under_way = [_threads(os.getpid()).submit(job) for job in jobs]
    # Wait for all, even after an error: the caller then closes their descriptors, and the numbers are reused.
    wait(under_way)
    for done in under_way:
        done.result()


@cache
def _threads(_process: int) -> ThreadPoolExecutor:
    # Cached, because starting threads takes longer than their waits; per process, since a fork has no threads.
    return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="disk")


def replace_file(path: Path, data: bytes, *, temporary: str) -> None:
    """Replace the content of `path` with `data`, atomically for readers; `temporary` is a name in the same folder."""
    unfinished = path.parent / temporary
    write_file(unfinished, [data])
    rename(unfinished, path)


def rename(source: Path, target: Path) -> None:
    """Rename within one folder, replacing a file of the new name, and sync the folder."""
    with durable_changes() as changes:
        changes.rename(source, target)


def blank(descriptor: int, slots: NDArray[np.int64], *, slot_bytes: int, fill: int) -> None:
    """Fill slots of an open file with the byte `fill`, and write no other byte. The caller syncs the file.

    Writes through a mapping, because edges are unordered and a system call for each would dominate the time. The kernel
    does the writing. So if the file system cannot provide a page (a full disk under a file that shares blocks with a
    copy, an unreadable block), the call returns an error. A write by this process to the same page would kill it
    (SIGBUS).

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
    """Return first byte and end of each run of slots, sorted and distinct, cut to at most `_SPAN_BYTES`."""
    breaks = np.flatnonzero(np.diff(slots) > 1)
    firsts = slots[np.concatenate([[0], breaks + 1])] * slot_bytes
    ends = (slots[np.concatenate([breaks, [slots.size - 1]])] + 1) * slot_bytes
    cuts = -(-(ends - firsts) // _SPAN_BYTES)
    within = np.arange(cuts.sum()) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    begins = np.repeat(firsts, cuts) + within * _SPAN_BYTES
    return begins, np.minimum(begins + _SPAN_BYTES, np.repeat(ends, cuts))


def _read_into(mapped: mmap.mmap, firsts: NDArray[np.int64], ends: NDArray[np.int64], source: int) -> None:
    """Read once from the start of `source` into parts of a mapping."""
    whole = memoryview(mapped)
    parts = [whole[first:end] for first, end in zip(firsts.tolist(), ends.tolist(), strict=True)]
    try:
        done = os.preadv(source, parts, 0)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
        done = 0
    finally:
        # The mapping can be closed only without references to it.
        parts.clear()
        whole.release()
    if done != int((ends - firsts).sum()):
        raise OSError(errno.EIO, "part of a file to overwrite cannot be reached, or there is no space left")


def _write_at(descriptor: int, parts: Iterable[bytes | memoryview], offset: int) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            done = os.pwrite(descriptor, view, offset)
            view, offset = view[done:], offset + done


def make_folder(path: Path) -> None:
    """Create one folder. Its parent must exist and is not synced."""
    path.mkdir(_FOLDER_MODE)


def make_folders(path: Path) -> None:
    """Create a folder and its missing parents, durably."""
    if not path.exists():
        make_folders(path.parent)
        make_folder(path)
        sync(path.parent)


def sync(path: Path) -> None:
    """Make a file's content or a folder's names durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_file(path: Path) -> None:
    """Remove a file. A missing file is fine."""
    path.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a folder with everything in it, deepest first. Neither it nor its parent is synced."""
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:
            remove_file(entry)
    path.rmdir()
