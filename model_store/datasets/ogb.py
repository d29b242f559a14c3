"""Raw folders of OGB's node property datasets: `raw/*.csv.gz` and `split/<scheme>/{train,valid,test}.csv.gz`.

`edge.csv.gz` has one edge a line, `node-feat.csv.gz` the features, `node-label.csv.gz` one class a line, empty or `nan`
for none, and the files of a split have row numbers.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.datasets.benchmark_files import without_loops
from model_store.disk import untrusted_arrays
from model_store.disk.untrusted_arrays import ArraysUnreadable, first_line
from model_store.errors import DatasetNotFound
from model_store.memory import free_memory
from projector.errors import GraphError
from projector.graph.raw_graph import RawGraph

_NEEDED = ("edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz")
#: Files whose content a model here cannot use, and what they are.
_OTHERS = {"edge-feat.csv.gz": "features of edges", "triplet-type-list.csv.gz": "edges of several types"}
_SETS = ("train", "valid", "test")
#: An archive may unpack to this many times its size, or to this many bytes.
_MOST_UNPACKED, _ALWAYS_READ = 100, 256 << 20
#: Bytes of a value while it is read: as a number twice, and converted.
_VALUE_BYTES = 24
#: Longest line, in characters.
_LINE = 1 << 20
_REMEDY = (
    "Convert it: `data = ogb.nodeproppred.PygNodePropPredDataset(name)[0]` and "
    "`torch.save(torch_geometric.data.Data(x=data.x, edge_index=data.edge_index, y=data.y), 'data.pt')`."
)


def looks_like_ogb(folder: Path) -> bool:
    """Return whether a folder has the layout of OGB's downloads."""
    return (folder / "raw").is_dir() and (folder / "split").is_dir()


def read_ogb(folder: Path) -> RawGraph:
    """Return the dataset in one of OGB's folders. Raises DatasetNotFound if a file is missing, and GraphError."""
    raw = folder / "raw"
    for name, what in _OTHERS.items():
        if (raw / name).exists():
            raise GraphError(f"{folder} has {what} ({name}), which a model here does not use.", _REMEDY)
    if missing := [name for name in _NEEDED if not (raw / name).is_file()]:
        raise DatasetNotFound(f"{raw} lacks {', '.join(missing)}.", f"Only node classification is read. {_REMEDY}")
    try:
        edges, features, labels = (_numbers(raw / name) for name in _NEEDED)
        if labels.shape[1] != 1:
            raise GraphError(f"{folder} has {labels.shape[1]} labels per node, and a model here takes one.", _REMEDY)
        y = np.where(np.isnan(labels[:, 0]), -1, labels[:, 0])
        if (y != np.rint(y)).any():
            raise GraphError(f"{folder}: some labels are not whole numbers.", _REMEDY)
        found = RawGraph.of(
            str(folder),
            edge_index=edges.astype(np.int64).T,
            features=features.astype(np.float32),
            labels=y.astype(np.int64),
            masks=_masks(folder / "split", len(y)),
            node_ids=None,
        )
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise GraphError(f"{folder} cannot be read as a folder of OGB: {first_line(error)}.", _REMEDY) from error
    return without_loops(found)


def _masks(split: Path, nodes: int) -> tuple[NDArray[np.bool_], ...]:
    schemes = sorted(path for path in split.iterdir() if path.is_dir())
    if len(schemes) != 1:
        names = ", ".join(path.name for path in schemes) or "none"
        raise GraphError(f"{split} has {len(schemes)} splits: {names}.", "Keep the folder of one of them.")
    masks = []
    for name in _SETS:
        rows, mask = _numbers(schemes[0] / f"{name}.csv.gz")[:, 0].astype(np.int64), np.zeros(nodes, dtype=np.bool_)
        if rows.size and (rows.min() < 0 or rows.max() >= nodes):
            raise ValueError(f"{name}.csv.gz names row {rows.max()} of {nodes}")
        mask[rows] = True
        masks.append(mask)
    return tuple(masks)


def _numbers(path: Path) -> NDArray[Any]:
    """Return a file of numbers without a header, (lines, columns) float64; NaN for an empty label."""
    return np.loadtxt(_lines(path), delimiter=",", ndmin=2, dtype=np.float64, comments=None)


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a packed file, never much more than it may unpack to.

    Raises ValueError beyond that, and ArraysUnreadable for more numbers than fit into memory.
    """
    allowed = max(_ALWAYS_READ, _MOST_UNPACKED * path.stat().st_size)
    untrusted_arrays.require_room(path, [path.stat().st_size])
    free, values = free_memory(), 0
    with gzip.open(path, "rt", encoding="ascii") as file:
        while line := file.readline(_LINE):
            allowed -= len(line)
            values += line.count(",") + 1
            if free is not None and values * _VALUE_BYTES > free:
                raise ArraysUnreadable(
                    f"Reading {path} takes more than the {free:,} bytes of memory that are free.",
                    "Use a machine with more memory, or a smaller file.",
                )
            if allowed < 0 or len(line) == _LINE:
                raise ValueError(f"{path.name} unpacks to more than its size allows")
            yield line if line.strip() else "nan\n"
