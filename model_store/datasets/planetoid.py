"""Planetoid's raw files: `ind.NAME.x`, `y`, `tx`, `ty`, `allx`, `ally`, `graph` and `test.index`, as in its repository.

All but `test.index` are pickles of Python 2: scipy CSR matrices, numpy arrays, and a dictionary of neighbours. They are
unpickled without running anything. Rows follow Kipf's loader: `allx`, then `tx` in the order of `test.index`. Ids
missing in its range (Citeseer has 15) are nodes without features and label. Training nodes are the rows of `x`,
validation nodes the next 500, test nodes those of `test.index`.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.datasets.benchmark_files import without_loops
from model_store.datasets.inert_pickles import InertUnpickler, Unread
from model_store.disk import untrusted_arrays
from model_store.disk.untrusted_arrays import ArraysUnreadable, first_line
from model_store.errors import DatasetNotFound
from projector.errors import GraphError
from projector.graph.raw_graph import RawGraph
from projector.graph.sparse_parts import from_compressed

_PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_VALIDATION = 500
#: Most nodes for each row of the files.
_MOST_NODES = 2
_REMEDY = (
    "Download the files again, or convert them: `data = torch_geometric.datasets.Planetoid(root, name)[0]` and "
    "`torch.save(data, 'data.pt')`."
)


def datasets_in(folder: Path) -> list[str]:
    """Return the names of Planetoid's datasets in a folder."""
    return sorted(path.name.removeprefix("ind.").removesuffix(".x") for path in folder.glob("ind.*.x"))


def read_planetoid(folder: Path, name: str) -> RawGraph:
    """Return the dataset `name` in a folder of raw files. Raises DatasetNotFound if one is missing, and GraphError."""
    files = {part: folder / f"ind.{name}.{part}" for part in _PARTS}
    if missing := [path.name for path in files.values() if not path.is_file()]:
        raise DatasetNotFound(f"{folder} lacks {', '.join(missing)}.", _REMEDY)
    origin = str(folder / f"ind.{name}")
    try:
        held = {part: _unpickled(path) for part, path in files.items() if part != "test.index"}
        order = np.array(files["test.index"].read_text(encoding="ascii").split(), dtype=np.int64)
        edges = _edges(held["graph"], files["graph"].stat().st_size)
        return _graph(origin, held, order, edges)
    except (ArraysUnreadable, GraphError):
        raise
    except Exception as error:
        # Damage can raise any exception.
        raise GraphError(f"{origin} cannot be read as raw files of Planetoid: {first_line(error)}.", _REMEDY) from error


def _graph(origin: str, held: Mapping[str, Any], order: NDArray[np.int64], edges: NDArray[np.int64]) -> RawGraph:
    known, tests = _matrix(held["allx"]), _matrix(held["tx"])
    labels, test_labels = (_array(held[part]).argmax(axis=1) for part in ("ally", "ty"))
    first, nodes = known.shape[0], int(order.max()) + 1
    if order.size != tests.shape[0] or np.unique(order).size != order.size or order.min() != first:
        raise ValueError(f"test.index names {order.size} nodes from {order.min()}, after {first} rows of allx")
    if nodes > _MOST_NODES * (first + order.size):
        raise ValueError(f"test.index names node {nodes - 1}, and the files have {first + order.size} rows")
    rows = sp.csr_array((nodes - first, known.shape[1]), dtype=tests.dtype).tolil()
    rows[order - first] = tests
    y = np.full(nodes, -1, dtype=np.int64)
    y[:first], y[order] = labels, test_labels
    unlabelled = np.concatenate([_array(held["ally"]).sum(axis=1), np.ones(nodes - first)]) == 0
    y[unlabelled] = -1
    masks = np.zeros((3, nodes), dtype=np.bool_)
    training = _array(held["y"]).shape[0]
    masks[0, :training] = masks[1, training : training + _VALIDATION] = masks[2, order] = True
    masks &= y >= 0
    raw = RawGraph.of(
        origin,
        edge_index=edges,
        features=sp.vstack([known, sp.csr_array(rows)], format="csr"),
        labels=y,
        masks=tuple(masks),
        node_ids=None,
    )
    return without_loops(raw)


def _edges(graph: Mapping[int, list[int]], size: int) -> NDArray[np.int64]:
    """Return the edges (2, E) in a dictionary of neighbours from a file of `size` bytes."""
    # A pickle can name one list any number of times.
    if (listed := sum(map(len, graph.values()))) > size:
        raise ValueError(f"the graph lists {listed} neighbours in {size} bytes")
    pairs = np.array([(node, other) for node, others in graph.items() for other in others], dtype=np.int64)
    return np.unique(pairs.reshape(-1, 2), axis=0).T


def _unpickled(path: Path) -> Any:
    untrusted_arrays.require_room(path, [path.stat().st_size])
    return InertUnpickler(io.BytesIO(path.read_bytes()), encoding="latin1", known=_known()).load()


class _Array(Unread):
    """A numpy array: version, shape, dtype, whether in Fortran's order, and its bytes."""


class _Dtype(Unread):
    """A numpy dtype: its code, and its byte order."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__()
        self.code = str(args[0])


def _known() -> Mapping[str, Any]:
    known: dict[str, Any] = {
        "numpy.dtype": _Dtype,
        "collections.defaultdict": lambda *_: type("dict", (dict,), {})(),
        # How Python 3 writes bytes for Python 2.
        "_codecs.encode": lambda text, *_: text,
    }
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        known[f"{module}._reconstruct"] = lambda *_: _Array()
    for module in ("copy_reg", "copyreg"):
        known[f"{module}._reconstructor"] = lambda kind, *_: kind()
    return known


def _array(found: Any) -> NDArray[Any]:
    if not isinstance(found, _Array) or not isinstance(found.state, tuple):
        raise ValueError(f"it holds a {type(found).__name__} in place of an array")
    _, shape, dtype, fortran, data = found.state
    if not isinstance(dtype, _Dtype) or dtype.code[0] not in "fiub":
        raise ValueError("an array has elements other than numbers")
    order = dtype.state[1] if isinstance(dtype.state, tuple) else "|"
    raw = data.encode("latin1") if isinstance(data, str) else data
    if not isinstance(raw, bytes):
        raise ValueError(f"an array holds a {type(raw).__name__} in place of bytes")
    values = np.frombuffer(raw, np.dtype(f"{order if order in '<>' else '|'}{dtype.code}"))
    return values.reshape(shape, order="F" if fortran else "C")


def _matrix(found: Any) -> sp.csr_array:
    if not isinstance(found, Unread) or not found.kind.endswith(".csr_matrix") or not isinstance(found.state, dict):
        raise ValueError("it holds another object in place of a CSR matrix")
    indptr, indices, data = (_array(found.state[name]) for name in ("indptr", "indices", "data"))
    return from_compressed(indptr, indices, data, [int(length) for length in found.state["_shape"]])
