"""Files of benchmarks in their authors' layouts: what they hold, what is left out, and refusals with a remedy."""

import gzip
import io
import pickle
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from model_store.datasets.load import load_dataset
from model_store.disk.untrusted_arrays import ArraysUnreadable
from model_store.errors import DatasetNotFound
from projector.errors import GraphError, ProjectorError
from projector.graph.graph import Graph
from tests.support.models.small_graphs import dense


def python2(value: object) -> bytes:
    """Return a pickle with texts and bytes as Python 2 wrote them, in protocol 2."""
    file, plain = io.BytesIO(), pickle._Pickler

    def save_string(self: Any, text: str | bytes) -> None:
        data = text.encode("latin1") if isinstance(text, str) else text
        self.write(pickle.BINSTRING + len(data).to_bytes(4, "little") + data)
        self.memoize(text)

    kinds = {**plain.dispatch, str: save_string, bytes: save_string}
    type("Python2", (plain,), {"dispatch": kinds})(file, protocol=2).dump(value)
    return file.getvalue().replace(b"scipy.sparse._csr", b"scipy.sparse.csr")


@pytest.fixture(scope="module")
def cora() -> Graph:
    return load_dataset("cora", split="public", data_dirs=[])


@pytest.fixture
def planetoid(tmp_path: Path, cora: Graph) -> Path:
    """Cora as Planetoid's raw files, with its test nodes in another order and an edge listed twice."""
    X, onehot = sp.csr_matrix(cora.features), np.eye(7, dtype=np.int32)[cora.labels]
    order = np.random.default_rng(0).permutation(np.flatnonzero(cora.test_mask))
    first = int(order.min())
    around: dict[int, list[int]] = defaultdict(list)
    for node, other in np.stack(cora.adjacency.nonzero()).T.tolist():
        around[node].append(other)
    around[0] += [around[0][0], 0]
    for part, value in {
        "x": X[:140], "y": onehot[:140], "allx": X[:first], "ally": onehot[:first], "tx": X[order], "ty": onehot[order],
        "graph": around,
    }.items():  # fmt: skip
        (tmp_path / f"ind.cora.{part}").write_bytes(python2(value))
    (tmp_path / "ind.cora.test.index").write_text("".join(f"{node}\n" for node in order))
    return tmp_path


def same(found: Graph, expected: Graph) -> bool:
    arrays = ("labels", "train_mask", "val_mask", "test_mask")
    return (
        (found.adjacency != expected.adjacency).nnz == 0
        and np.array_equal(dense(found.features), dense(expected.features))
        and all(np.array_equal(getattr(found, name), getattr(expected, name)) for name in arrays)
    )


def test_planetoids_raw_files_are_the_dataset_that_ships(planetoid: Path, cora: Graph) -> None:
    notes: list[str] = []
    for source in (planetoid, planetoid / "ind.cora"):
        found = load_dataset(str(source), split="public", data_dirs=[], report=notes.append)
        assert same(found, cora)
        assert notes.pop().endswith("1 self loop(s) were left out: propagation adds its own.")


def test_a_gap_in_the_test_index_is_a_node_without_label_and_features(planetoid: Path, cora: Graph) -> None:
    order = (planetoid / "ind.cora.test.index").read_text().split()
    moved = [str(cora.nodes) if int(node) == cora.nodes - 5 else node for node in order]
    (planetoid / "ind.cora.test.index").write_text("\n".join(moved))
    found = load_dataset(str(planetoid), split="public", data_dirs=[])
    assert found.nodes == cora.nodes + 1
    assert (found.labels[cora.nodes - 5], dense(found.features)[cora.nodes - 5].any()) == (-1, False)
    assert found.test_mask.sum() == 1_000


def test_a_pickle_that_would_run_a_program_runs_nothing(planetoid: Path) -> None:
    made = planetoid / "made"
    (planetoid / "ind.cora.graph").write_bytes(f"cos\nsystem\n(S'touch {made}'\ntR.".encode())
    with pytest.raises(GraphError) as refused:
        load_dataset(str(planetoid), data_dirs=[])
    assert "torch.save" in refused.value.remedy
    assert not made.exists()


class Claimed:
    """An array whose bytes are a number."""

    def __reduce__(self) -> tuple[Any, ...]:
        found = np.zeros(1).__reduce__()
        assert isinstance(found, tuple)
        return *found[:2], (1, (1 << 28,), np.dtype(np.int32), False, 1 << 30)


def test_files_of_planetoid_that_claim_more_than_they_hold_are_refused(planetoid: Path) -> None:
    shared = list(range(2_000))
    for part, spoiled, said in (
        ("graph", python2(dict.fromkeys(range(2_000), shared)), "lists 4000000 neighbours"),
        ("ally", python2(Claimed()), "a int in place of bytes"),
        ("test.index", None, "names node 999999999"),
    ):
        path = planetoid / f"ind.cora.{part}"
        before = path.read_bytes()
        path.write_bytes(before.replace(b"2700\n", b"999999999\n", 1) if spoiled is None else spoiled)
        with pytest.raises(GraphError, match=said):
            load_dataset(str(planetoid), data_dirs=[])
        path.write_bytes(before)


def test_a_missing_or_a_second_dataset_of_planetoid_is_named(planetoid: Path) -> None:
    (planetoid / "ind.citeseer.x").touch()
    with pytest.raises(DatasetNotFound, match="citeseer, cora"):
        load_dataset(str(planetoid), data_dirs=[])
    (planetoid / "ind.cora.tx").unlink()
    with pytest.raises(DatasetNotFound, match=r"lacks ind\.cora\.tx"):
        load_dataset(f"{planetoid}/ind.cora", data_dirs=[])


def shchur(path: Path, graph: Graph, **others: Any) -> str:
    upper, X = sp.csr_array(sp.triu(graph.adjacency)), sp.csr_array(graph.features)
    loops = sp.csr_array(sp.diags_array(np.r_[1.0, np.zeros(graph.nodes - 1)]))
    arrays: dict[str, Any] = {"labels": graph.labels.astype(np.int8)}
    for name, part in (("adj", sp.csr_array(upper + loops)), ("attr", X)):
        arrays |= {f"{name}_data": part.data, f"{name}_indices": part.indices, f"{name}_indptr": part.indptr}
        arrays[f"{name}_shape"] = np.array(part.shape)
    np.savez(path, **{name: value for name, value in (arrays | others).items() if value is not None})
    return str(path)


@pytest.fixture(scope="module")
def small() -> Graph:
    return load_dataset("synthetic:n=40,d=8,classes=3,seed=1", data_dirs=[])


def test_the_layout_of_shchur_et_al(tmp_path: Path, small: Graph) -> None:
    names = np.array([f"paper {node}" for node in range(small.nodes)])
    source = shchur(tmp_path / "s.npz", small, node_names=names, class_names=np.array(["a", "b", "c"]))
    notes: list[str] = []
    with pytest.raises(GraphError, match="--undirected"):
        load_dataset(source, data_dirs=[])
    found = load_dataset(source, data_dirs=[], undirected=True, report=notes.append)
    assert (found.adjacency != small.adjacency).nnz == 0
    assert np.array_equal(dense(found.features), dense(small.features))
    assert np.array_equal(found.labels, small.labels)
    assert list(found.node_ids) == names.tolist()
    assert ["class_names" in notes[0], "1 self loop" in notes[1]] == [True, True]


def test_pickled_names_are_not_read_and_that_is_reported(tmp_path: Path, small: Graph) -> None:
    notes: list[str] = []
    names = np.array([object() for _ in range(small.nodes)], dtype=object)
    source = shchur(tmp_path / "s.npz", small, node_names=names)
    found = load_dataset(source, data_dirs=[], undirected=True, report=notes.append)
    assert found.node_ids[3] == "3"
    assert "pickled objects and are not read" in notes[0]


def test_damaged_names_are_refused(tmp_path: Path, small: Graph) -> None:
    names = np.array([f"paper {node}" for node in range(small.nodes)])
    source = shchur(tmp_path / "s.npz", small, node_names=names)
    Path(source).write_bytes(Path(source).read_bytes().replace(b"'<U8'", b"'<U9'", 1))
    with pytest.raises(GraphError, match="Bad CRC"):
        load_dataset(source, data_dirs=[], undirected=True)


@pytest.mark.parametrize("wrong", [{"labels": None, "labels_data": np.ones(3)}, {"attr_data": None}])
def test_what_is_missing_is_refused_with_lines_that_convert_it(tmp_path: Path, small: Graph, wrong: Any) -> None:
    with pytest.raises(GraphError) as refused:
        load_dataset(shchur(tmp_path / "s.npz", small, **wrong), data_dirs=[])
    assert "numpy.savez('plain.npz'" in refused.value.remedy


def platonov(path: Path, graph: Graph, **others: Any) -> str:
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 3, (10, graph.nodes))
    splits = {f"{name}_masks": drawn == number for number, name in enumerate(("train", "val", "test"))}
    edges = np.stack(sp.triu(graph.adjacency).nonzero()).T
    arrays = {"node_features": dense(graph.features), "node_labels": graph.labels, "edges": edges, **splits, **others}
    np.savez(path, **arrays)
    return str(path)


def test_the_layout_of_platonov_et_al_has_ten_splits(tmp_path: Path, small: Graph) -> None:
    source = platonov(tmp_path / "p.npz", small)
    with np.load(source) as arrays:
        masks = arrays["train_masks"]
    for index in (None, 0, 7):
        found = load_dataset(source, split="public", data_dirs=[], split_index=index)
        assert (found.adjacency != small.adjacency).nnz == 0
        assert np.array_equal(found.train_mask, masks[index or 0])
    with pytest.raises(GraphError, match="splits 0 to 9"):
        load_dataset(source, data_dirs=[], split_index=10)
    with pytest.raises(GraphError, match="at most one split"):
        load_dataset("cora", data_dirs=[], split_index=0)
    with pytest.raises(GraphError, match="one row of booleans per split"):
        load_dataset(platonov(tmp_path / "p.npz", small, val_masks=np.zeros((9, small.nodes), bool)), data_dirs=[])


def test_a_damaged_header_of_an_array_is_refused(tmp_path: Path, small: Graph) -> None:
    source = platonov(tmp_path / "p.npz", small)
    damaged = Path(source).read_bytes().replace(b"'shape': (40,), }", b"'shape': (40,, (}", 1)
    Path(source).write_bytes(damaged)
    with pytest.raises(GraphError, match="cannot be read"):
        load_dataset(source, data_dirs=[])


def ogb(folder: Path, graph: Graph) -> str:
    lines: dict[str, Any] = {
        "raw/edge": np.stack(graph.adjacency.nonzero()).T,
        "raw/node-feat": dense(graph.features),
        "raw/node-label": graph.labels[:, None],
        "raw/num-node-list": [[graph.nodes]],
        **{
            f"split/time/{name}": np.flatnonzero(mask)[:, None]
            for name, mask in (("train", graph.train_mask), ("valid", graph.val_mask), ("test", graph.test_mask))
        },
    }
    for name, rows in lines.items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, "".join(",".join(map(str, row)) + "\n" for row in rows))
    return str(folder)


def write(path: Path, text: str) -> None:
    with gzip.open(path, "wt") as file:
        file.write(text)


def test_a_folder_of_ogb(tmp_path: Path, small: Graph) -> None:
    assert same(load_dataset(ogb(tmp_path / "ogbn_small", small), split="public", data_dirs=[]), small)


def test_a_folder_of_ogb_is_read_only_as_far_as_memory_is_free(
    tmp_path: Path, small: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ogb(tmp_path / "ogbn_small", small)
    write(tmp_path / "ogbn_small" / "raw" / "node-feat.csv.gz", "1,2\n" * 1_000_000)
    monkeypatch.setattr("model_store.datasets.ogb.free_memory", lambda: 1 << 20)
    with pytest.raises(ArraysUnreadable, match="1,048,576 bytes of memory that are free"):
        load_dataset(source, data_dirs=[])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda raw: write(raw / "edge-feat.csv.gz", "1\n"), "features of edges"),
        (lambda raw: (raw / "node-feat.csv.gz").unlink(), r"lacks node-feat\.csv\.gz"),
        (lambda raw: write(raw / "node-label.csv.gz", "1,2\n" * 40), "2 labels per node"),
        (lambda raw: write(raw / "node-label.csv.gz", "0.5\n" * 40), "not whole numbers"),
        (lambda raw: write(raw / "edge.csv.gz", "a,b\n"), "cannot be read"),
        (lambda raw: (raw / "edge.csv.gz").write_bytes(b"plain"), "cannot be read"),
        (lambda raw: write(raw / "edge.csv.gz", "1" * (2 << 20)), "unpacks to more"),
        (lambda raw: write(raw.parent / "split" / "time" / "train.csv.gz", "40\n"), "names row 40"),
        (lambda raw: (raw.parent / "split" / "sales").mkdir(), "2 splits: sales, time"),
    ],
)
def test_a_folder_of_ogb_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, small: Graph, spoil: Callable[[Path], Any], said: str
) -> None:
    source = ogb(tmp_path / "ogbn_small", small)
    spoil(Path(source) / "raw")
    with pytest.raises(ProjectorError, match=said):
        load_dataset(source, data_dirs=[])
