"""H on the training rows, kept while the graph shrinks, equals H computed afresh."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from model_store.datasets.load import load_dataset
from projector import fit
from projector.forgetting.batch import Removal
from projector.forgetting.status import RepairStatus
from projector.forgetting.training_rows import TrainingRows
from projector.network import image_rows as pyramid
from projector.network.spec import Combine, ModelSpec, PropagationKind
from service.unlearner.resident import Resident
from tests.support.device import DEVICE
from tests.support.models import small_graphs
from tests.support.models.stored import StoredModel, built

#: Sparse enough for a node's neighbourhood to be a small part of it.
GRAPH = "synthetic:n=400,d=25,classes=3,seed=7"
SPECS = {
    "last": ModelSpec(),
    "concat, row": ModelSpec(combine=Combine.CONCAT, propagation=PropagationKind.ROW, hops=3),
    "no self loops": ModelSpec(self_loops=0.0, hops=1),
    "label reuse": ModelSpec(combine=Combine.CONCAT, label_hops=3),
    "diffusion": ModelSpec(combine=Combine.CONCAT, diffusion=True, label_hops=1),
}


def random_removals(resident: Resident, rng: np.random.Generator) -> list[Removal]:
    live = rng.permutation(np.flatnonzero(resident.committed.state.live & resident.committed.state.features.in_span))
    removals = [
        Removal(nodes=live[:2]),
        Removal(features=live[2:3]),
    ]
    edges = np.argwhere(np.triu(resident.committed.live_graph.propagator.edges.adjacency.toarray(), 1))
    usable = edges[~np.isin(edges, live[:3]).any(axis=1) & resident.committed.state.live[edges].all(axis=1)]
    return [*removals, Removal(edges=rng.permutation(usable)[:1])]


@pytest.mark.parametrize(
    ("spec", "dense"),
    [*((spec, False) for spec in SPECS.values()), (SPECS["last"], True)],
    ids=[*SPECS, "last, dense features"],
)
def test_rows_that_are_kept_equal_rows_computed_afresh(spec: ModelSpec, dense: bool, tmp_path: Path) -> None:
    graph = load_dataset(GRAPH, data_dirs=[])
    if dense:
        graph = replace(graph, features=small_graphs.dense(graph.features))
    resident = StoredModel(tmp_path / "model", built(graph, spec)).resident
    rng = np.random.default_rng(1)
    kept = TrainingRows(resident.committed.live_graph)
    partly = 0
    for step in range(6):
        prepared = resident.prepare(random_removals(resident, rng))
        later = kept.on(prepared.live_graph)
        if step % 2:
            # Also after several batches since H was last used.
            before = later._H
            H, afresh = later.H(), prepared.live_graph.objective(1.0).representation.dense()
            assert (H - afresh).abs().max() <= 1e-12 * afresh.abs().max()
            partly += before is not None
        resident.commit(prepared)
        kept = later
        kept.forget()
    assert partly == 2


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU computes all rows anew")
def test_only_what_can_have_changed_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resident = StoredModel(tmp_path / "model", built(load_dataset(GRAPH, data_dirs=[]))).resident
    kept = TrainingRows(resident.committed.live_graph)
    kept.H()
    neighbours = resident.committed.live_graph.propagator.neighbours
    quiet = int(np.flatnonzero(neighbours == 1)[0])
    prepared = resident.prepare([Removal(nodes=np.array([quiet]))])
    asked = []

    def watched(*arguments: Any) -> object:
        found = pyramid.image_rows(*arguments)
        asked.append((len(arguments[1]), found is not None))
        return found

    monkeypatch.setattr("projector.forgetting.training_rows.image_rows", watched)
    rows, partly = kept.on(prepared.live_graph).H(), asked
    assert rows.shape[0] == prepared.live_graph.training_rows.size
    [(count, by_pyramid)] = partly
    assert by_pyramid
    assert 0 < count < rows.shape[0] / 4


def test_rows_half_made_for_one_caller_are_gone_on_with_for_another() -> None:
    live_graph = fit(load_dataset(GRAPH, data_dirs=[]), SPECS["label reuse"])._held.live_graph
    kept = TrainingRows(live_graph)
    first, second = kept.steps(), kept.steps()
    next(first)
    next(second)
    assert list(first)
    assert not list(second)
    torch.testing.assert_close(kept.H(), live_graph.objective(1.0).representation.dense(), rtol=0, atol=0)


def test_the_rows_of_what_was_deleted_leave_the_memory(tmp_path: Path) -> None:
    resident = StoredModel(tmp_path / "model", built(load_dataset(GRAPH, data_dirs=[]))).resident
    kept = TrainingRows(resident.committed.live_graph)
    H = kept.H()
    node = int(resident.committed.live_graph.training_rows[5])
    prepared = resident.prepare([Removal(nodes=np.array([node]))])
    assert H[5].any()
    kept.on(prepared.live_graph).forget()
    assert not H[5].any()


@pytest.mark.parametrize(("width", "keeps"), [(24, True), (100, False)])
def test_a_repair_by_the_whole_factor_uses_the_rows_where_they_are_narrow(width: int, keeps: bool) -> None:
    # A product through the factors is expensive relative to one with H: few of many nodes are for training.
    random, nodes = np.random.default_rng(3), 6_000
    ends = random.integers(nodes, size=(2, 2 * nodes))
    ends = ends[:, ends[0] != ends[1]]
    labels = random.integers(3, size=nodes)
    training = np.arange(nodes) < 400
    features = random.normal(size=(nodes, width))

    def data(kept: NDArray[np.bool_]) -> dict[str, torch.Tensor]:
        both = np.concatenate([ends, ends[::-1]], axis=1)[:, np.tile(kept[ends].all(axis=0), 2)]
        mask = training & kept
        parts = {"edge_index": np.unique(both, axis=1), "x": features, "y": labels, "train_mask": mask}
        return {name: torch.from_numpy(part) for name, part in parts.items()}

    deleted = np.array([5, 17, 5_000])
    model = fit(data(np.ones(nodes, dtype=np.bool_)), ModelSpec(regularization=1e-2))
    held = model._held.live_graph
    assert (held.factorises, held.keeps_dense) == (True, keeps)
    left, report = model.forget(nodes=deleted)
    afresh = fit(data(~np.isin(np.arange(nodes), deleted)), ModelSpec(regularization=1e-2))
    assert report.repair is RepairStatus.CONVERGED
    np.testing.assert_allclose(left.weights, afresh.weights, rtol=0, atol=1e-8 * float(np.linalg.norm(afresh.weights)))
