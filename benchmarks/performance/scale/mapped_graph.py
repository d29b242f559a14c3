"""A graph in files that several processes map, so that its pages are in memory once."""

import json
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from projector.graph.external_ids import NodeIds
from projector.graph.graph import Graph


def store(graph: Graph, folder: Path) -> None:
    """Write the graph's arrays to files for mapping."""
    matrices = {"adjacency": graph.adjacency}
    arrays = {name: getattr(graph, name) for name in ("labels", "train_mask", "val_mask", "test_mask")}
    if isinstance(graph.features, np.ndarray):
        arrays["features"] = graph.features
    else:
        matrices["features"] = graph.features
    for name, matrix in matrices.items():
        arrays |= {f"{name}.{part}": getattr(matrix, part) for part in ("data", "indices", "indptr")}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    about = {"width": graph.num_features, "classes": graph.class_names}
    (folder / "graph.json").write_text(json.dumps(about))


def stored(folder: Path) -> Graph:
    """Map the stored graph. A process copies a page only when it writes to it."""
    about = json.loads((folder / "graph.json").read_text())
    arrays = {file.stem: np.load(file, mmap_mode="c") for file in folder.glob("*.npy")}
    nodes = arrays["labels"].size

    def matrix(name: str, width: int) -> sp.csr_array:
        parts = tuple(arrays[f"{name}.{part}"] for part in ("data", "indices", "indptr"))
        return sp.csr_array(parts, shape=(nodes, width), copy=False)

    return Graph(
        adjacency=matrix("adjacency", nodes),
        features=arrays["features"] if "features" in arrays else matrix("features", about["width"]),
        labels=arrays["labels"],
        train_mask=arrays["train_mask"],
        val_mask=arrays["val_mask"],
        test_mask=arrays["test_mask"],
        node_ids=NodeIds.of(map(str, range(nodes))),
        class_names=tuple(about["classes"]),
    )
