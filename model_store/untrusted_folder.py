"""A model's folder from elsewhere: what may lie in it before any of it is read, and a copy of what counts in it."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from model_store.disk.durable import make_folders, open_plain, sync, write_file
from model_store.errors import NotAStore
from model_store.memory import free_memory
from model_store.store import Store
from model_store.work import Work

#: Bytes that are copied at a time.
_BLOCK = 8 << 20
#: Bytes of memory for a byte on the disk: of an array, which is decoded beside itself, and of JSON, of which the
#: shortest values, such as `[],`, are the largest.
_PER_BYTE, _PER_JSON_BYTE = 2, 32
#: How deep a model's folders lie in one another: versions/<version>/<file>.
_DEPTH = 3


def require_plain(folder: Path, *, free_bytes: Callable[[], int | None] = free_memory) -> None:
    """Raises NotAStore for a folder that cannot be read without harm; nothing in it is opened.

    It may hold files and folders alone, no links, pipes, sockets or devices, and no more bytes than can be read into
    the memory that `free_bytes` tells of.
    """
    try:
        files = list(_files(folder))
    except OSError as error:
        raise NotAStore(
            f"{error.filename or folder} cannot be read ({error.strerror}).",
            "Give a folder written by `./lethe train` that this user can read.",
        ) from error
    needed = sum(status.st_size * (_PER_JSON_BYTE if path.suffix == ".json" else _PER_BYTE) for path, status in files)
    free = free_bytes()
    if free is not None and needed > free:
        raise NotAStore(
            f"{folder} holds files that take {needed:,} bytes of memory to read, and {free:,} are free.",
            "Import it on a machine with more memory.",
        )


def copy_model(source: Path, target: Path, *, work: Work | None = None) -> Store:
    """A copy, in the new folder `target`, of the model in `source`: of its current version and no other file.

    It is one step of `work`.

    Raises NotAStore and StoreDamaged as `Store.open`, and NotAStore when an erasure was interrupted in it.
    """
    store = Store.open(source)
    if store.is_erasing():
        raise NotAStore(
            f"The model in {source} still contains deleted data.",
            "Serve it once, which erases that data, then import it.",
        )
    work, names = work or Work(), sorted(store.files())
    work.begin("Copying the model", sum((source / name).lstat().st_size for name in names))
    for name in names:
        folder = (target / name).parent
        make_folders(folder)
        descriptor = open_plain(source / name, os.O_RDONLY)
        try:
            write_file(target / name, _blocks(descriptor, work))
        finally:
            os.close(descriptor)
        sync(folder)
    return Store.open(target)


def _files(folder: Path, depth: int = _DEPTH) -> Iterator[tuple[Path, os.stat_result]]:
    """Every file below `folder`; NotAStore for what is neither file nor folder, and for folders too deep."""
    for path in sorted(folder.iterdir()):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            yield path, status
        elif stat.S_ISDIR(status.st_mode) and depth > 1:
            yield from _files(path, depth - 1)
        else:
            raise NotAStore(
                f"{path} is {_kind(status.st_mode)}, not a file of a model store.",
                "Give the folder as `./lethe train` wrote it.",
            )


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFBLK: "a device",
        stat.S_IFCHR: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "not a regular file")


def _blocks(descriptor: int, work: Work) -> Iterator[bytes]:
    """The bytes of an open file, no more than it has now."""
    left = os.fstat(descriptor).st_size
    while left and (block := os.read(descriptor, min(left, _BLOCK))):
        left -= len(block)
        yield block
        work.count(len(block))
