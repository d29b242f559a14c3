"""Check an untrusted model folder before reading any of it, and copy its current files."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from model_store.disk.durable import make_folders, open_plain, sync, write_file
from model_store.errors import NotAStore
from model_store.memory import free_memory
from model_store.store import Store
from model_store.work import Work

#: Bytes copied at a time.
_BLOCK = 8 << 20
#: Bytes of memory per byte on disk: for arrays, decoded next to their bytes, and for JSON, whose shortest values, such
#: as `[],`, take the most.
_PER_BYTE, _PER_JSON_BYTE = 2, 32
#: Depth of a model's folders: versions/<version>/<file>.
_DEPTH = 3


def require_plain(folder: Path, *, free_bytes: Callable[[], int | None] = free_memory) -> None:
    """Raise NotAStore for a folder that cannot be read safely, without opening anything in it.

    It may contain only files and folders: no links, pipes, sockets or devices. Its size must fit the memory reported by
    `free_bytes`.
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
    """Copy the model in `source` to the new folder `target`: its current version and no other file.

    Reports as one step of `work`. Raises NotAStore and StoreDamaged as `Store.open`, and NotAStore if an erasure or an
    addition was interrupted in it.
    """
    store = Store.open(source)
    if store.is_erasing():
        raise NotAStore(
            f"The model in {source} still contains deleted data.",
            "Serve it once, which erases that data, then import it.",
        )
    if store.is_ungrown(store.current()):
        raise NotAStore(
            f"The model in {source} still lacks data that was added to it.",
            "Serve it once, which adds that data, then import it.",
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
    """Yield every file below `folder`. Raises NotAStore for other kinds of entries, and for folders too deep."""
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
    """Yield the bytes of an open file, up to its present size."""
    left = os.fstat(descriptor).st_size
    while left and (block := os.read(descriptor, min(left, _BLOCK))):
        left -= len(block)
        yield block
        work.count(len(block))
