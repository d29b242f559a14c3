"""Tables in files: every format holds the same graph, and a damaged table is refused by name."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.datasets.files import write_npz
from model_store.datasets.load import default_data_dirs, load_dataset
from model_store.datasets.tables import TableFiles, load_tables
from model_store.errors import DatasetNotFound
from projector import fit, from_tables
from projector.errors import GraphError
from projector.graph.columns import ColumnKind
from projector.graph.external_ids import NodeIds
from projector.graph.graph import Graph
from projector.graph.raw_graph import Masks, RawGraph
from projector.graph.tables import TableOptions, TableReport
from tests.support.models.cora_tables import COLUMNS, LIBRARIES, WRITERS, cora, tables, write_datasets
from tests.support.models.small_graphs import dense


def dumped(graph: Graph) -> list[NDArray[Any]]:
    """Return all of a graph that training uses."""
    adjacency = graph.adjacency
    return [
        *(adjacency.indptr, adjacency.indices, adjacency.data, dense(graph.features), graph.labels),
        *(graph.train_mask, graph.val_mask, graph.test_mask),
        np.array([str(type(graph.features)), str(graph.features.dtype), *graph.node_ids, *graph.class_names]),
    ]


def assert_same(found: Graph, wanted: Graph) -> None:
    for one, other in zip(dumped(found), dumped(wanted), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.ci
def test_the_same_graph_by_every_format_and_library_gives_the_same_weights(tmp_path: Path) -> None:
    wanted = cora()
    nodes, edges = tables(wanted)
    graphs = {}
    for suffix, write in WRITERS.items():
        write(nodes, tmp_path / f"users{suffix}")
        write(edges, tmp_path / f"follows{suffix}")
        files = TableFiles(tmp_path / f"users{suffix}", tmp_path / f"follows{suffix}", TableOptions(**COLUMNS))
        graphs[suffix], report = load_tables(files, undirected=True)
        assert (report.edges, report.features, report.split, report.dropped) == (5278, 1433, "split", [])
    for path in write_datasets(wanted, tmp_path):
        graphs[path.suffix] = load_dataset(str(path), split="public", data_dirs=[])
    for name, held in LIBRARIES.items():
        graphs[name] = from_tables(held(nodes), held(edges), **COLUMNS)
    for found in graphs.values():
        assert_same(found, wanted)
    # The same arrays give the same bits, so two of them are enough.
    first, second = (fit(graphs[name]).weights for name in (".npz", ".parquet"))
    assert np.array_equal(first, second)


@pytest.mark.slow
def test_pubmed_with_weights_is_the_same_by_every_format_and_library(tmp_path: Path) -> None:
    plain = load_dataset("pubmed", split="public", data_dirs=default_data_dirs(os.environ))
    masks = Masks(plain.train_mask, plain.val_mask, plain.test_mask)
    upper = sp.coo_array(sp.triu(plain.adjacency))
    strengths = 10.0 ** np.random.default_rng(0).uniform(-1, 1, upper.nnz)
    edges = np.concatenate([np.stack(upper.coords), np.stack(upper.coords)[::-1]], axis=1)
    ids = NodeIds.of(f"user-{row:05d}" for row in range(plain.nodes))
    raw = RawGraph.of(
        "Pubmed",
        edge_index=edges,
        edge_weight=np.tile(strengths, 2),
        features=plain.features,
        labels=plain.labels,
        masks=(plain.train_mask, plain.val_mask, plain.test_mask),
        node_ids=ids,
    )
    wanted = raw.graph(masks)
    write_npz(tmp_path / "pubmed.npz", raw)
    graphs = {".npz": load_dataset(str(tmp_path / "pubmed.npz"), split="public", data_dirs=[])}
    nodes, follows = tables(wanted)
    rows, columns = wanted.adjacency.nonzero()
    follows = follows.append_column("strength", pa.array(wanted.adjacency.data[rows < columns]))
    options = {**COLUMNS, "weight": "strength"}
    for suffix, write in WRITERS.items():
        write(nodes, tmp_path / f"users{suffix}")
        write(follows, tmp_path / f"follows{suffix}")
        files = TableFiles(tmp_path / f"users{suffix}", tmp_path / f"follows{suffix}", TableOptions(**options))
        graphs[suffix], _ = load_tables(files, undirected=True)
    for name, held in LIBRARIES.items():
        graphs[name] = from_tables(held(nodes), held(follows), **options)
    for name, found in graphs.items():
        assert found.weighted, name
        if name in (".csv", ".tsv"):
            # Text has no float32: the numbers are read as float64, and are the same when rounded.
            assert np.array_equal(dense(found.features).astype(np.float32), dense(wanted.features))
            assert_same(replace(found, features=wanted.features), wanted)
        else:
            assert_same(found, wanted)
    first, second, third = (fit(graphs[name]).weights for name in (".npz", ".parquet", "polars"))
    assert np.array_equal(first, second)
    assert np.array_equal(first, third)
    assert np.abs(first - fit(plain).weights).max() > 1e-3


@pytest.mark.ci
def test_another_order_of_rows_gives_the_same_weights_within_the_bound() -> None:
    nodes, edges = tables(cora())
    model = fit(from_tables(nodes, edges, **COLUMNS))
    order = np.random.default_rng(0).permutation(nodes.num_rows)
    moved = fit(from_tables(nodes.take(pa.array(order)), edges.slice(100), **COLUMNS))
    assert np.abs(moved.weights - model.weights).max() > 1e-3, "other edges are another graph"
    moved = fit(from_tables(nodes.take(pa.array(order)), edges.take(pa.array(np.arange(5278)[::-1])), **COLUMNS))
    bounds = [one.certificate.bound for one in (model, moved) if one.certificate is not None]
    assert len(bounds) == 2
    assert np.linalg.norm(moved.weights - model.weights) <= sum(bounds) < 1e-6 * np.linalg.norm(model.weights)


NODES = """id,age,city,vip,score,label,split
007,30,Kiel,true,0.5,yes,train
8,,Kiel,false,1,no,train
9,41,Bonn,false,2,,val
10,1,Bonn,true,-3,no,test
11,2,Jena,false,0,yes,
"""
EDGES = "source,target\n007,8\n8,9\n9,10\n10,11\n"


def csv(
    folder: Path, nodes: str | bytes = NODES, edges: str | bytes = EDGES, **options: Any
) -> tuple[Graph, TableReport]:
    """Load two tables from CSV files, with edges in both directions."""
    for name, text in (("nodes.csv", nodes), ("edges.csv", edges)):
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    loading = {name: options.pop(name) for name in ("dedupe", "undirected") if name in options}
    files = TableFiles(folder / "nodes.csv", folder / "edges.csv", TableOptions(**options))
    return load_tables(files, **{"undirected": True, **loading})


def test_a_csv_is_read_by_the_stated_rules(tmp_path: Path) -> None:
    graph, report = csv(tmp_path, missing="zero")
    assert graph.columns is not None
    assert [(each.name, each.kind, each.width) for each in graph.columns.columns] == [
        ("age", ColumnKind.NUMBER, 1),
        ("city", ColumnKind.CATEGORY, 2),
        ("vip", ColumnKind.NUMBER, 1),
        ("score", ColumnKind.NUMBER, 1),
    ]
    assert graph.columns.columns[1].categories == ("Bonn", "Kiel")
    assert dense(graph.features).tolist() == [
        [30, 0, 1, 1, 0.5],
        [0, 0, 1, 0, 1],
        [41, 1, 0, 0, 2],
        [1, 1, 0, 1, -3],
        [2, 0, 0, 0, 0],
    ]
    assert graph.node_ids == ("007", "8", "9", "10", "11")
    assert graph.class_names == ("no", "yes")
    assert graph.labels.tolist() == [1, 0, -1, 0, 1]
    assert graph.train_mask.tolist() == [True, True, False, False, False]
    assert graph.test_mask.tolist() == [False, False, False, True, False]
    assert not graph.val_mask.any()
    assert report.dropped == [
        "Missing values of 'age' that count as 0: 1.",
        "Categories of 'city' that a single node has, and that have no column: 1.",
        "Nodes of the split without a label, in no set: 1.",
    ]


def test_edges_that_cannot_be_used_are_dropped_and_counted_on_request(tmp_path: Path) -> None:
    edges = "source,target,since\n" + "8,9\n8,8\n8,nobody\n,9\n9,8\n9,10\n9,10\n".replace("\n", ",2020\n")
    graph, report = csv(tmp_path, edges=edges, missing="zero", drop_invalid=True, dedupe=True)
    assert sorted(zip(*(rows.tolist() for rows in graph.adjacency.nonzero()), strict=True)) == [
        (1, 2), (2, 1), (2, 3), (3, 2),
    ]  # fmt: skip
    assert (report.edges, report.unknown_ends, report.self_loops, report.merged) == (7, 2, 1, 2)
    assert "Columns of the edges not read: 'since'." in report.dropped


def test_weights_are_those_of_the_column_that_is_named(tmp_path: Path) -> None:
    graph, _ = csv(tmp_path, edges="source,target,strength\n8,9,2.5\n10,9,1\n", weight="strength", missing="zero")
    assert graph.weighted
    assert graph.adjacency.toarray()[1:4, 1:4].tolist() == [[0, 2.5, 0], [2.5, 0, 1], [0, 1, 0]]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "missing values": ({}, "1 in 'age'"),
    "no such id column": ({"id": "user"}, "no column 'user'"),
    "no such label": ({"label": "segment"}, "no column 'segment'"),
    "no such feature": ({"features": ("age", "height")}, "no column 'height'"),
    "a feature that is the label": ({"features": ("age", "label")}, "'label' cannot also be features"),
    "one column as id and label": ({"label": "id"}, "both id and label"),
    "no such end": ({"source": "from", "missing": "zero"}, "no column 'from'"),
    "a repeated id": ({"nodes": NODES.replace("8,,", "007,1,")}, "not unique: 007"),
    "a missing id": ({"nodes": NODES.replace("8,,", ",1,")}, "1 ids are missing"),
    "an unknown word in the split": ({"nodes": NODES.replace("val", "holdout")}, "'holdout'"),
    "a repeated column": ({"nodes": NODES.replace("age", "score")}, "'score'"),
    "a date": ({"nodes": NODES.replace("true", "2020-01-01").replace("false", "2020-01-02")}, "'vip' holds date32"),
    "ids as a feature": ({"nodes": NODES.replace("age", "account_id")}, "looks like ids"),
    "no category in common": ({"nodes": NODES.replace("Kiel", "a", 1).replace("Bonn", "b", 1)}, "no two nodes share"),
    "no rows": ({"nodes": NODES.splitlines()[0] + "\n"}, "no rows"),
    "nothing at all": ({"nodes": ""}, "cannot be read"),
    "other bytes": ({"nodes": NODES.replace("Kiel", "K\udcffl").encode("utf-8", "surrogateescape")}, "city"),
    "a row too short": ({"edges": EDGES + "8\n"}, "cannot be read"),
    "a dangling edge": ({"edges": EDGES + "8,nobody\n", "missing": "zero"}, "nobody"),
    "a self loop": ({"edges": EDGES + "8,8\n", "missing": "zero"}, "1 are self loops"),
    "edges in one direction": ({"undirected": False, "missing": "zero"}, "--undirected"),
    "a repeated edge": ({"edges": EDGES + "8,9\n", "missing": "zero"}, "given 2 times"),
    "weights that are not named": ({"edges": "source,target,weight\n8,9,2\n", "missing": "zero"}, "--weight"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_table_is_refused_with_what_is_wrong(case: str, tmp_path: Path) -> None:
    changes, named = BAD[case]
    with pytest.raises(GraphError) as refused:
        csv(tmp_path, **changes)
    assert named in str(refused.value)


def test_a_missing_file_and_another_suffix_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFound, match="does not exist"):
        load_tables(TableFiles(tmp_path / "a.parquet", tmp_path / "b.parquet", TableOptions()))
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(GraphError, match="Name the file after its format"):
        load_tables(TableFiles(tmp_path / "a.xlsx", tmp_path / "b.parquet", TableOptions()))
