"""Files of every form that is read, spoilt in every way that a member can be."""

import io
import json
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save

from tests.support.inputs.variations import UNKNOWN, Sweep, misspellings
from tests.support.models.small_datasets import arrays

#: Members in the order they are written, which may hold one twice.
Members = list[tuple[str, Any]]


@dataclass(frozen=True)
class Spoilt:
    """A file, and what is wrong with it."""

    what: str
    content: bytes
    #: What a refusal must name, one of these; () where it need not be refused.
    wrong: tuple[str, ...] = ()


def npz(members: Members) -> bytes:
    """An archive of arrays."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Duplicate name", UserWarning)
        for name, value in members:
            array = io.BytesIO()
            np.save(array, np.asarray(value), allow_pickle=True)
            archive.writestr(f"{name}.npy", array.getvalue())
    return packed.getvalue()


def torch_geometric(members: Members) -> bytes:
    """A saved `Data`; of a member that is given twice the last is kept."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch_geometric.data import Data
    packed = io.BytesIO()
    data = Data()
    for name, value in members:
        data[name] = _tensor(value)
    torch.save(data, packed)
    return packed.getvalue()


def safetensors(members: Members) -> bytes:
    """Tensors with a header of JSON, in which a member may stand twice."""
    whole = save({name: np.ascontiguousarray(value) for name, value in dict(members).items()})
    if len(dict(members)) == len(members):
        return whole
    size = struct.unpack("<Q", whole[:8])[0]
    header = whole[8 : 8 + size].rstrip()
    again = json.dumps(json.loads(header)[members[0][0]])
    header = header[:-1] + f", {json.dumps(members[0][0])}: {again}}}".encode()
    return struct.pack("<Q", len(header)) + header + whole[8 + size :]


#: How a file of each suffix is written.
DATASETS: Mapping[str, Callable[[Members], bytes]] = {".npz": npz, ".pt": torch_geometric, ".pth": torch_geometric}
WEIGHTS: Mapping[str, Callable[[Members], bytes]] = {".npz": npz, ".safetensors": safetensors}


def dataset() -> dict[str, Any]:
    """The members of a dataset, all that are read."""
    return arrays() | {"node_ids": np.array(["ann", "bob", "cy", "dee", "eve", "fay"])}


def weights() -> dict[str, Any]:
    """The members of a file of weights."""
    return {"W": np.ones((3, 12, 3)), "label_W": np.ones((1, 3, 3))}


def spoilt(
    good: dict[str, Any], write: Callable[[Members], bytes], needed: tuple[str, ...], sweep: Sweep, most: int
) -> Iterator[Spoilt]:
    """Members unknown, misspelled, twice, missing, of other types and shapes; the file cut, and its bytes changed."""
    members = list(good.items())
    # A dataset may hold more than is read, but nothing that looks like weights, a split or ids.
    for name in ("edge_weight", "edge_attr", "user_id", *((UNKNOWN,) if "W" in good else ())):
        yield Spoilt(f"with {name}", write([*members, (name, np.full(6, 0.5))]), (name,))
    for name, value in good.items():
        others = [one for one in members if one[0] != name]
        if write is not torch_geometric:
            yield Spoilt(f"{name} twice", write([(name, value), *others, (name, value)]), (name,))
        if name in needed:
            yield Spoilt(f"without {name}", write(others), (name,))
        for misspelled in sweep.some([one for one in misspellings(name, good) if one.isidentifier()], most):
            yield Spoilt(f"{misspelled} for {name}", write([*others, (misspelled, value)]), (misspelled, name))
        for what, other in sweep.some(list(others_than(np.asarray(value))), most):
            try:
                content = write([*others, (name, other)])
            except (TypeError, ValueError, KeyError, RuntimeError):
                # No file of this form can hold it.
                continue
            yield Spoilt(f"{name} {what}", content, (name,) if what in ("NaN", "infinite") else ())
    whole = write(members)
    for length in sweep.some(range(len(whole)), 4 * most):
        yield Spoilt(f"its first {length} bytes", whole[:length], ("",))
    for at in sweep.some(range(len(whole)), 8 * most):
        yield Spoilt(f"byte {at} another", whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])


def others_than(value: NDArray[Any]) -> Iterator[tuple[str, Any]]:
    """An array of other types, shapes and values."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for kind in ("?", "i1", "u1", "i8", "u8", "f2", "f4", "f8", "c16", "S5", "U5", "M8[s]", "O", ">f8", ">i4"):
            try:
                yield f"of {kind}", value.astype(kind)
            except (TypeError, ValueError):
                continue
    yield "transposed", value.T.copy()
    yield "flat", value.reshape(-1)
    yield "deeper", value[None]
    yield "in columns", value[..., None]
    yield "empty", value[:0]
    yield "shorter", value[:-1]
    yield "longer", np.concatenate([value, value[:1]])
    yield "a number", np.asarray(value).reshape(-1)[0]
    if value.dtype.kind in "iuf":
        yield "negative", -value - 1
        yield "huge", np.full(value.shape, np.iinfo(np.int64).max)
    if value.dtype.kind == "f":
        yield "NaN", np.full_like(value, np.nan)
        yield "infinite", np.where(np.arange(value.size).reshape(value.shape) == 1, np.inf, value)
    if value.ndim == 2:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from _sparse(torch.from_numpy(np.asarray(value, dtype=np.float32)))


def _sparse(dense: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Layouts of torch, right ones and some whose indices lead elsewhere; of these nothing must be converted."""
    rows, columns = dense.shape
    yield "in COO", dense.to_sparse()
    yield "in CSR", dense.to_sparse_csr()
    yield "in CSC", dense.to_sparse_csc()
    yield "in BSR", dense.to_sparse_bsr((1, 1))
    yield "of bfloat16", dense.to(torch.bfloat16)
    far = 2**40
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
        values = torch.ones(4)
        for what, make, lead in (
            ("CSR", torch.sparse_csr_tensor, rows),
            ("CSC", torch.sparse_csc_tensor, columns),
        ):
            pointers = torch.arange(lead + 1).clamp(max=4)
            yield f"in {what} with far indices", make(pointers, torch.full((4,), far), values, size=(rows, columns))
            yield f"in {what} with negative indices", make(pointers, torch.full((4,), -1), values, size=(rows, columns))
            late = pointers.clone()
            late[-1] = far
            yield (
                f"in {what} with far pointers",
                make(late, torch.zeros(4, dtype=torch.int64), values, size=(rows, columns)),
            )
        outside = torch.tensor([[0, rows + 10**6], [0, 0]])
        yield "in COO with far indices", torch.sparse_coo_tensor(outside, torch.ones(2), size=(rows, columns))


def _tensor(value: Any) -> Any:
    """As a `Data` holds it: names as a list, numbers as a tensor."""
    if isinstance(value, torch.Tensor):
        return value
    array = np.asarray(value)
    if array.dtype.kind in "US":
        return array.tolist()
    if array.dtype.kind not in "biufc" or not array.dtype.isnative:
        raise TypeError(array.dtype)
    return torch.from_numpy(np.array(array))


def written(folder: Path, suffix: str, files: Iterator[Spoilt]) -> dict[str, Spoilt]:
    """The files by their names in the new folder that they are written to."""
    folder.mkdir(parents=True)
    made = {}
    for number, each in enumerate(files):
        name = f"{number:04}{suffix}"
        (folder / name).write_bytes(each.content)
        made[name] = each
    return made
