"""`audit leftovers --features` for two nodes with the same features, one of them deleted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from model_store.base.edit import Edit
from model_store.base.erasure import Erasure
from model_store.store import Store
from model_store.versions import VersionRef
from projector.graph.external_ids import NodeIds
from projector.network.spec import ModelSpec
from service.cli.training import train_model
from service.predictions.writer import Publisher
from tests.support.clients.command_line import CommandLine
from tests.support.models.store_states import rows
from tests.support.service import publications

NODES, DELETED, TWIN = 40, 3, 17


@pytest.fixture
def lethe(in_a_folder: None, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


def searched(lethe: CommandLine, features: str, *, ids: bool = True) -> tuple[int, str, str]:
    ran = lethe("audit", "leftovers", *(("--ids", "ids.txt") if ids else ()), "--features", features, "--model", "m")
    return ran.status, ran.stdout, ran.stderr


def save_people(folder: Path, layout: str, *, twin: bool) -> None:
    """Save a dataset, the features of the deleted node and its id; its twin has the same features."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((NODES, 8))
    if layout == "sparse":
        # Counts, stored in any order: runs of values like the deleted node's occur between any others.
        features = rng.integers(2, 4, (NODES, 64)) * (rng.random((NODES, 64)) < 0.2).astype(float)
    if twin:
        features[TWIN] = features[DELETED]
    ring = np.array([[row, (row + 1) % NODES] for row in range(NODES)])
    ids = np.array([f"person-{row:06}" for row in range(NODES)])
    edges, labels = np.concatenate([ring, ring[:, ::-1]]).T, np.arange(NODES) % 2
    parts: dict[str, Any] = {"x": features}
    if layout == "sparse":
        X = sp.csr_array(features)
        parts = {"x_indptr": X.indptr, "x_indices": X.indices, "x_data": X.data, "x_shape": np.array(X.shape)}
    np.savez(folder / "people.npz", edge_index=edges, y=labels, node_ids=ids, **parts)
    np.save(folder / "rows.npy", features[[DELETED]])
    (folder / "ids.txt").write_text(f" {ids[DELETED]} \n\n")


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_features_that_a_live_node_has_as_well_are_no_trace_of_the_deleted_one(
    lethe: CommandLine, tmp_path: Path, layout: str
) -> None:
    save_people(tmp_path, layout, twin=True)
    train_model("people.npz", tmp_path / "m", ModelSpec(), data_dirs=[])

    status, found, _ = searched(lethe, "rows.npy")
    assert status == 1
    assert f"features of row 0 match row {DELETED}" in found
    assert f"match row {TWIN}" not in found

    store = Store.open(tmp_path / "m")
    state = store.read_version(store.current())
    live = state.live.copy()
    live[DELETED] = False
    without = replace(state, live=live, featured=live)
    store.write_version(VersionRef(1, 1), without, edges=0)
    store.set_current(VersionRef(1, 1))
    # Deleted but not yet erased: its row is a trace, its twin's is not.
    status, found, _ = searched(lethe, "rows.npy")
    assert status == 1
    assert f"features of row 0 match row {DELETED}" in found
    store.erase(Erasure(nodes=np.array([DELETED])), fencing=1)

    for file in ("rows.npy", "people.npz"):
        status, found, notes = searched(lethe, file)
        assert (status, found.split(" ")[0]) == (0, "0"), found
        assert "Not traces: 1 row of features, equal to those of live nodes" in notes
        assert f"rows of the file and of the model: 0 and {TWIN}" in notes
    # The owner of the rows is unknown: it may be the node itself that remains.
    status, found, _ = searched(lethe, "rows.npy", ids=False)
    assert status == 1
    assert f"features of row 0 match row {TWIN}" in found


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_features_with_which_a_node_joined_are_no_trace_of_a_deleted_one_but_what_it_had_joined_with_is(
    lethe: CommandLine, tmp_path: Path, layout: str
) -> None:
    save_people(tmp_path, layout, twin=False)
    train_model("people.npz", tmp_path / "m", ModelSpec(), data_dirs=[])
    store = Store.open(tmp_path / "m")
    features = store.load_graph().features[[DELETED]]
    edit = Edit(NODES, NodeIds.of(["newcomer"]), rows(-1), np.zeros(1, np.uint8), None, rows(NODES), features)
    state = store.read_version(store.current())
    live = np.append(state.live, True)
    live[DELETED] = False
    store.write_version(VersionRef(1, 1), replace(state, live=live, featured=live), edges=0, beta_version=1, edit=edit)
    store.set_current(VersionRef(1, 1))
    base = store.load_base()
    store.write_beta(base.beta, base.label_beta, version=1, fencing=1)
    store.erase(Erasure(nodes=np.array([DELETED])), fencing=1, keep=VersionRef(1, 1))
    store.grow(VersionRef(1, 1), fencing=1)

    status, found, notes = searched(lethe, "rows.npy")
    assert (status, found.split(" ")[0]) == (0, "0"), found
    assert f"rows of the file and of the model: 0 and {NODES}" in notes
    (tmp_path / "ids.txt").write_text("newcomer\n")
    status, found, _ = searched(lethe, "rows.npy")
    assert status == 1
    assert f"id on line 1 matches row {NODES}" in found
    assert "edit.safetensors" in found


def test_what_is_published_is_searched_wherever_it_lies_until_it_is_blanked(lethe: CommandLine, tmp_path: Path) -> None:
    edges = np.array([[row, (row + 1) % NODES] for row in range(NODES)]).T
    people: dict[str, Any] = {"x": np.random.default_rng(0).standard_normal((NODES, 8)), "y": np.arange(NODES) % 2}
    np.savez(tmp_path / "people.npz", edge_index=np.concatenate([edges, edges[::-1]], axis=1), **people)
    train_model("people.npz", tmp_path / "m", ModelSpec(), data_dirs=[])
    publisher, ref = Publisher(tmp_path / "var", tmp_path / "share"), VersionRef(1, 1)
    shown = publications.snapshot(1, np.full((2, 2), 0.5))
    publications.load(publisher, ref, publications.published_model(("someone-else", "person-000003"), shown), shown)
    (tmp_path / "ids.txt").write_text("person-000003\n")
    ran = lethe("audit", "leftovers", "--ids", "ids.txt", "--model", "m")
    assert ran.status == 1
    assert str(publications.layout_of(publisher).model) in ran.stdout.replace("\n", "")
    publisher.erase(ref, np.array([1]), np.empty((0, 2), dtype=np.int64))
    assert lethe("audit", "leftovers", "--ids", "ids.txt", "--model", "m").status == 0
