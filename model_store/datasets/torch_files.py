"""Read untrusted `torch.save` files without running anything in them.

Reads plain objects and tensors. Objects of other classes become `Unread`. torch's own loader would refuse the file, and
it allocates any size that a storage or tensor claims. Here no tensor is larger than its bytes in the file.
"""

import io
import operator
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model_store.datasets.inert_pickles import InertUnpickler
from model_store.disk import untrusted_arrays

_LEGACY_MAGIC, _LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}
_COMPRESSED = {
    str(layout): layout for layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
}


@dataclass(frozen=True)
class _Storage:
    dtype: torch.dtype
    key: str
    #: Elements of `dtype`.
    size: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor whose values have not been read."""

    storage: _Storage
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class _StoredSparse:
    layout: str
    #: Indices, values, shape and the rest, in torch's order for this layout.
    parts: Any


class TorchFile:
    """The object in a torch.save file, and its tensors."""

    def __init__(self, path: Path) -> None:
        """Raises ArraysUnreadable if it is too large to read, and any other error if it is damaged."""
        self._bytes: dict[str, bytearray] = {}
        if zipfile.is_zipfile(path):
            self._read_archive(path)
        else:
            untrusted_arrays.require_room(path, [path.stat().st_size])
            self._read_legacy(io.BytesIO(path.read_bytes()))

    def tensor(self, value: object) -> object:
        """Return the tensor that `value`, found in `content`, represents, or `value` itself if it is not a tensor.

        The parts of a sparse tensor need not fit together. Raises ValueError for a tensor that is not in the file.
        """
        match value:
            case StoredTensor():
                return self._dense(value)
            case _StoredSparse():
                return self._sparse(value)
        return value

    def _read_archive(self, path: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            untrusted_arrays.require_room(path, (info.file_size for info in archive.infolist()))
            members = {info.filename: info for info in archive.infolist()}
            tops = [name for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
            if len(tops) != 1:
                raise ValueError(f"it holds {len(tops)} files data.pkl where torch.save writes one")
            folder = tops[0].removesuffix("data.pkl")
            order = members.get(f"{folder}byteorder")
            if order is not None and untrusted_arrays.member_bytes(archive, order) != b"little":
                raise ValueError("its numbers are big-endian")
            unpickler = _Unpickler(io.BytesIO(untrusted_arrays.member_bytes(archive, members[tops[0]])))
            self.content = unpickler.load()
            for storage in unpickler.storages:
                info = members.get(f"{folder}data/{storage.key}")
                if info is None:
                    raise ValueError(f"its storage {storage.key} is missing")
                if storage.key not in self._bytes:
                    self._bytes[storage.key] = bytearray(untrusted_arrays.member_bytes(archive, info))

    def _read_legacy(self, file: io.BytesIO) -> None:
        """Read the format before torch 1.6: four pickles, the keys of the storages, and each storage after its size."""
        magic, protocol, system = (_Unpickler(file).load() for _ in range(3))
        if magic != _LEGACY_MAGIC or protocol != _LEGACY_PROTOCOL or not system["little_endian"]:
            raise ValueError("it has none of the formats of torch.save, or its numbers are big-endian")
        unpickler = _Unpickler(file)
        self.content = unpickler.load()
        sizes = {storage.key: storage.size * storage.dtype.itemsize for storage in unpickler.storages}
        for key in _Unpickler(file).load():
            file.seek(8, io.SEEK_CUR)
            self._bytes[key] = bytearray(file.read(sizes[key]))

    def _dense(self, stored: StoredTensor) -> Tensor:
        held = self._bytes[stored.storage.key]
        if len(held) != stored.storage.size * stored.storage.dtype.itemsize:
            raise ValueError(f"a storage of {stored.storage.size} values has {len(held)} bytes")
        shape, strides = _whole(stored.shape), _whole(stored.strides)
        offset = operator.index(stored.offset)
        if 0 in shape:
            return torch.empty(shape, dtype=stored.dtype)
        last = offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        if offset < 0 or last >= len(held) // stored.dtype.itemsize:
            raise ValueError(f"a tensor of shape {shape} has more values than are stored")
        # A file may hold bytes other than 0 and 1 for a bool.
        boolean = stored.dtype is torch.bool
        values = torch.frombuffer(held, dtype=torch.uint8 if boolean else stored.dtype)
        return (values != 0 if boolean else values).as_strided(shape, strides, offset)

    def _sparse(self, stored: _StoredSparse) -> Tensor:
        parts = [self._dense(part) if isinstance(part, StoredTensor) else part for part in stored.parts]
        with warnings.catch_warnings():
            # Ignore torch's one-time beta warning.
            warnings.simplefilter("ignore", UserWarning)
            # The conversion to CSR checks the parts; torch's own check follows invalid pointers.
            if stored.layout == str(torch.sparse_coo):
                indices, values, shape = parts[:3]
                return torch.sparse_coo_tensor(indices, values, _whole(shape), check_invariants=False)
            pointers, indices, values, shape = parts
            layout = _COMPRESSED[stored.layout]
            return torch.sparse_compressed_tensor(
                pointers, indices, values, _whole(shape), layout=layout, check_invariants=False
            )


class _Unpickler(InertUnpickler):
    """Builds plain objects, unread tensors and `Unread`."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, encoding="utf-8", known=_known())
        self.storages: list[_Storage] = []

    def find_class(self, module: str, name: str) -> Any:
        """Return a type of numbers, or a stand-in."""
        if module == "torch":
            dtype = _STORAGES.get(name, vars(torch).get(name))
            if isinstance(dtype, torch.dtype):
                return dtype
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> _Storage:
        """Return the unread storage that a file refers to."""
        match pid:
            case ("storage", torch.dtype() as dtype, str(key), _, int(size), *view) if size >= 0 and view in (
                [],
                [None],
            ):
                self.storages.append(_Storage(dtype, key, size))
                return self.storages[-1]
        raise ValueError(f"it refers to {type(pid).__name__}s that are not whole storages")


def _known() -> Mapping[str, Any]:
    """Return fresh stand-ins for each file, which may set their attributes."""

    def tensor(
        storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...],
        _gradient: object = None, _hooks: object = None, marks: object = None,
    ) -> StoredTensor:  # fmt: skip
        _require_unmarked(marks)
        return StoredTensor(storage, storage.dtype, offset, shape, strides)

    def typed(
        storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...],
        _gradient: object, _hooks: object, dtype: torch.dtype, marks: object = None,
    ) -> StoredTensor:  # fmt: skip
        _require_unmarked(marks)
        return StoredTensor(storage, dtype, offset, shape, strides)

    def sparse(layout: str, parts: tuple[Any, ...]) -> _StoredSparse:
        return _StoredSparse(layout, parts)

    return {
        "torch._utils._rebuild_tensor": tensor,
        "torch._utils._rebuild_tensor_v2": tensor,
        "torch._utils._rebuild_tensor_v3": typed,
        "torch._utils._rebuild_sparse_tensor": sparse,
        "torch._utils._rebuild_parameter": lambda data, *_: data,
        # A tensor with attributes or of its own class has the values of the plain tensor.
        "torch._tensor._rebuild_from_type_v2": lambda make, _kind, parts, _state: make(*parts),
        "torch.serialization._get_layout": lambda name: name,
        # Neither copies: a file could ask for a thousand copies of a long list.
        "torch.Size": lambda lengths: lengths,
        "collections.OrderedDict": lambda *_: type("dict", (dict,), {})(),
        "torch.storage.UntypedStorage": torch.uint8,
    }


def _require_unmarked(marks: object) -> None:
    """Raise ValueError for a tensor whose values are the negative or conjugate of the stored ones."""
    if marks and not (isinstance(marks, dict) and not any(marks.values())):
        raise ValueError("a tensor is stored as the negative or conjugate of another")


def _whole(lengths: Any) -> tuple[int, ...]:
    found = tuple(operator.index(length) for length in lengths)
    if min(found, default=0) < 0:
        raise ValueError(f"a tensor has the shape or the strides {found}")
    return found
