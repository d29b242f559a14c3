"""Cora as two tables, and in every file and object that can hold them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import torch
from pyarrow import csv, feather, parquet

from model_store.datasets.files import write_npz
from model_store.datasets.load import load_dataset
from projector.graph.external_ids import NodeIds
from projector.graph.graph import Graph
from projector.graph.raw_graph import Masks, RawGraph

#: What the columns of the tables mean.
COLUMNS: Mapping[str, Any] = {"id": "user_id", "source": "follower", "target": "followed", "label": "segment"}


def cora() -> Graph:
    """Return Cora with its public split, and ids with letters."""
    graph = load_dataset("cora", split="public", data_dirs=[])
    masks = Masks(graph.train_mask, graph.val_mask, graph.test_mask)
    ids = NodeIds.of(f"user-{row:05d}" for row in range(graph.nodes))
    edges = np.stack(graph.adjacency.nonzero()).astype(np.int32)
    return RawGraph("Cora", edges, graph.features, graph.labels, masks, ids).graph(masks)


def tables(graph: Graph) -> tuple[pa.Table, pa.Table]:
    """Return the nodes, with integers as classes and the sets as words, and the edges, in one direction each."""
    ids = pa.array(list(graph.node_ids))
    X = graph.features if isinstance(graph.features, np.ndarray) else graph.features.toarray()
    sets = np.full(graph.nodes, None, dtype=object)
    for word, mask in (("train", graph.train_mask), ("validation", graph.val_mask), ("test", graph.test_mask)):
        sets[mask] = word
    words = {f"word_{column}": pa.array(X[:, column]) for column in range(X.shape[1])}
    nodes = {"user_id": ids, **words, "segment": pa.array(graph.labels), "split": pa.array(list(sets), pa.string())}
    rows, columns = graph.adjacency.nonzero()
    once = rows < columns
    ends = {"follower": ids.take(pa.array(rows[once])), "followed": ids.take(pa.array(columns[once]))}
    return pa.table(nodes), pa.table(ends)


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write Parquet in several row groups."""
    parquet.write_table(table, path, row_group_size=1000)


def write_stream(table: pa.Table, path: Path) -> None:
    """Write an Arrow stream."""
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table, max_chunksize=700)


#: Writers of tables, by the suffix of the file.
WRITERS: Mapping[str, Callable[[pa.Table, Path], None]] = {
    ".parquet": write_parquet,
    ".feather": lambda table, path: feather.write_feather(table, str(path), compression="lz4"),
    ".arrow": lambda table, path: feather.write_feather(table, str(path), compression="uncompressed"),
    ".arrows": write_stream,
    ".csv": lambda table, path: csv.write_csv(table, str(path)),
    ".tsv": lambda table, path: csv.write_csv(table, str(path), csv.WriteOptions(delimiter="\t", quoting_style="none")),
}


def _in_duckdb(table: pa.Table) -> object:
    # Its bindings print that they leak when a process ends that has imported them.
    import duckdb

    return duckdb.connect().from_arrow(table)


#: Tables as other libraries hold them.
LIBRARIES: Mapping[str, Callable[[pa.Table], object]] = {
    "pyarrow": lambda table: table,
    "polars": pl.from_arrow,
    "pandas": lambda table: table.to_pandas(),
    "duckdb": _in_duckdb,
}


def write_datasets(graph: Graph, folder: Path) -> tuple[Path, Path]:
    """Write the graph as an .npz and a saved torch-geometric `Data`."""
    masks = Masks(graph.train_mask, graph.val_mask, graph.test_mask)
    edges = np.stack(graph.adjacency.nonzero()).astype(np.int64)
    write_npz(folder / "cora.npz", RawGraph("Cora", edges, graph.features, graph.labels, masks, graph.node_ids))
    # torch-geometric takes seconds to import.
    from torch_geometric.data import Data

    X = graph.features if isinstance(graph.features, np.ndarray) else graph.features.toarray()
    data = Data(
        x=torch.from_numpy(X), edge_index=torch.from_numpy(edges), y=torch.from_numpy(graph.labels),
        train_mask=torch.from_numpy(masks.train), val_mask=torch.from_numpy(masks.val),
        test_mask=torch.from_numpy(masks.test), node_ids=list(graph.node_ids),
    )  # fmt: skip
    torch.save(data, folder / "cora.pt")
    return folder / "cora.npz", folder / "cora.pt"
