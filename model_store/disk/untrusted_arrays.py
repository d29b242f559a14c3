"""Read untrusted `.npz` and `.npy` files, checking their declarations against the file first."""

import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import IO, Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from model_store.memory import free_memory
from projector.errors import ProjectorError

#: An archive that unpacks to more bytes than this must not exceed this many unpacked bytes per packed byte.
_ALWAYS_READ, _MOST_UNPACKED = 256 << 20, 100
#: Copies held at once while the data becomes a graph.
_COPIES = 2
_REMEDY = "Write it again with numpy.savez_compressed, without object arrays."
#: With other methods, zipfile may unpack a piece to any size before checking the declared one.
_BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: numpy reads the header of an array as a Python literal.
_HEADER = (SyntaxError, tokenize.TokenError)
#: Terminal escape codes, such as for bold text.
_TERMINAL = re.compile("\x1b\\[[0-9;]*m")
_SMALLER = "Save sparse features in CSR form, or the arrays with numpy.savez, which does not compress."


class ArraysUnreadable(ProjectorError):
    """A file of arrays is damaged, contains objects, or is too large to read."""


class HoldsObjects(ArraysUnreadable):
    """An array holds Python objects, which are never unpickled."""


class _Objects(ValueError):
    """What `HoldsObjects` says, before the file is named."""


def read_npz(
    path: Path,
    wanted: Collection[str],
    *,
    also: Callable[[str], bool] = lambda name: False,
    free_bytes: Callable[[], int | None] = free_memory,
) -> dict[str, NDArray[Any]]:
    """Return the arrays of an `.npz` that are in `wanted` or for which `also` is true.

    Raises ArraysUnreadable if one differs from its declaration.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members: dict[str, zipfile.ZipInfo] = {}
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if name in members:
                    raise ValueError(f"it holds {name} twice")
                members[name] = info
            chosen = {name: info for name, info in members.items() if name in wanted or also(name)}
            require_room(path, (info.file_size for info in chosen.values()), free_bytes=free_bytes)
            arrays = {}
            for name, info in chosen.items():
                _require_bounded(info)
                with archive.open(info) as member:
                    _require_declared(member, info.file_size)
                with archive.open(info) as member:
                    arrays[name] = npy.read_array(member, allow_pickle=False)
            return arrays
    except (
        OSError, ValueError, TypeError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error,
        *_HEADER,
    ) as error:  # fmt: skip
        refusal = HoldsObjects if isinstance(error, _Objects) else ArraysUnreadable
        raise refusal(f"{path} cannot be read as an .npz of plain arrays: {first_line(error)}.", _REMEDY) from error


def names_in(path: Path) -> frozenset[str]:
    """Return the names of the arrays in an `.npz`; none for a file that is not one, which `read_npz` refuses."""
    try:
        with zipfile.ZipFile(path) as archive:
            return frozenset(info.filename.removesuffix(".npy") for info in archive.infolist())
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile):
        return frozenset()


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array in an `.npy`. Raises ArraysUnreadable if it differs from its declaration."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            require_room(path, [size])
            _require_declared(file, size)
            file.seek(0)
            return npy.read_array(file, allow_pickle=False)
    except (OSError, ValueError, TypeError, EOFError, *_HEADER) as error:
        raise ArraysUnreadable(
            f"{path} cannot be read as an .npy of a plain array: {first_line(error)}.",
            "Write it again with numpy.save, without objects.",
        ) from error


def require_room(path: Path, sizes: Iterable[int], *, free_bytes: Callable[[], int | None] = free_memory) -> None:
    """Raise ArraysUnreadable if unpacking `path`, in parts of these `sizes`, takes too much memory."""
    unpacked, packed, free = sum(sizes), path.stat().st_size, free_bytes()
    if unpacked > max(_ALWAYS_READ, _MOST_UNPACKED * packed):
        raise ArraysUnreadable(f"{path} has {packed:,} bytes, and would unpack to {unpacked:,}.", _SMALLER)
    if free is not None and _COPIES * unpacked > free:
        raise ArraysUnreadable(
            f"Reading {path} takes {_COPIES * unpacked:,} bytes of memory, and {free:,} are free.",
            "Use a machine with more memory, or a smaller file.",
        )


def member_bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Return a member's bytes, never more than declared. Raises ValueError if unpacking it has no bound."""
    _require_bounded(info)
    return archive.read(info)


def _require_bounded(info: zipfile.ZipInfo) -> None:
    if info.compress_type not in _BOUNDED:
        raise ValueError(f"{info.filename} is compressed by another method than DEFLATE")


def _require_declared(file: IO[bytes], size: int) -> None:
    """Raise ValueError unless the header of an `.npy` declares exactly the bytes that follow it."""
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"it is of version {version} of the format")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise _Objects("it holds Python objects")
    if not dtype.itemsize:
        # Otherwise nothing in the file bounds their number.
        raise ValueError(f"its elements ({dtype}) have no bytes")
    declared = dtype.itemsize
    for length in shape:
        declared *= length
    if min(shape, default=0) < 0 or declared != size - file.tell():
        raise ValueError(f"it declares {declared:,} bytes of {dtype} where {size - file.tell():,} follow")


def first_line(error: Exception) -> str:
    """Return an error's message as one line that can be continued."""
    return (_TERMINAL.sub("", str(error)).splitlines() or [type(error).__name__])[0].rstrip(". ")
