"""Rows of float64 in a temporary file, written by columns and read by rows, so that memory never holds all of them."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from projector.errors import DeviceError

_WORD = 8


class ScratchRows:
    """A (rows, columns) float64 matrix on disk, zero until written.

    Read and written by position and not through a mapping: a full disk is then an error instead of a signal, and what
    was read does not count as memory of this process. Every failure is a DeviceError.
    """

    def __init__(self, descriptor: int, rows: int, columns: int, folder: Path) -> None:
        """`descriptor` is of an empty file in `folder`; the space is taken now, so that hours of work do not fail."""
        self._descriptor = descriptor
        self._stride = columns * _WORD
        self._size = rows * self._stride
        self._folder = folder
        with self._explained():
            if self._size:
                os.posix_fallocate(descriptor, 0, self._size)

    def write_columns(self, start: int, values: NDArray[np.float64]) -> None:
        """Overwrites the columns from `start` on with `values` (rows, width)."""
        with self._explained():
            for row, segment in enumerate(np.ascontiguousarray(values, dtype=np.float64)):
                written = os.pwrite(self._descriptor, segment.data, row * self._stride + start * _WORD)
                if written != segment.nbytes:
                    raise OSError(f"{written} of {segment.nbytes} bytes written")

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """The rows (m,), as (m, columns)."""
        values = np.empty((rows.size, self._stride // _WORD))
        with self._explained():
            for view, row in zip(values, rows.tolist(), strict=True):
                read = os.preadv(self._descriptor, [view.data], row * self._stride)
                if read != view.nbytes:
                    raise OSError(f"{read} of {view.nbytes} bytes read")
        return values

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _unusable(self._size, self._folder, error) from error


@contextmanager
def scratch_rows(rows: int, columns: int, folder: Path | None = None) -> Iterator[ScratchRows]:
    """A zero matrix in a file without a name in `folder` (default: the system's folder for temporary files).

    The file is gone when the context ends, however it ends, the end of the process included. Raises DeviceError when
    the folder cannot hold it.
    """
    folder = folder or Path(tempfile.gettempdir())
    with ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0))
        except OSError as error:
            raise _unusable(rows * columns * _WORD, folder, error) from error
        yield ScratchRows(file.fileno(), rows, columns, folder)


def _unusable(size: int, folder: Path, error: OSError) -> DeviceError:
    return DeviceError(
        f"Minibatches read {size:,} bytes of propagated features from a temporary file in {folder}, which failed: "
        f"{error.strerror or error}.",
        "Make room there, name another folder in TMPDIR, or use --batch-size 0, which keeps nothing on disk.",
    )
