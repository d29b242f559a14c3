"""Every configuration of the model and every kind of request, drills among them, against a recomputation from scratch.

The everyday run takes the few configurations in which each pair of choices occurs; the slow run takes all of them.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from model_store.build import BuiltModel, build_model
from model_store.datasets.load import load_dataset
from projector.forgetting.batch import Removal
from projector.forgetting.canaries import PREFIX
from projector.forgetting.injection import add_canaries
from projector.forgetting.projection import Norms
from projector.graph.graph import Graph
from projector.network.blocks import by_block
from projector.network.spec import LossKind, SolverKind
from tests.property.configurations import Configuration, every, pairwise
from tests.property.oracle import Oracle, Side
from tests.unit.unlearning.stored import StoredModel

NODES = 48
COHORTS = 2
TOLERANCE = 1e-8


def graph_for(configuration: Configuration) -> Graph:
    graph = load_dataset(f"synthetic:n={NODES},d=20,classes=3,seed=5", data_dirs=[])
    if configuration.layout == "dense":
        return replace(graph, features=np.asarray(graph.features.toarray(), dtype=np.float64))
    return graph


def build(configuration: Configuration) -> BuiltModel:
    graph, canaries = add_canaries(graph_for(configuration), COHORTS, nodes=2, seed=0, tag="t")
    public = [graph.node_ids[row] for row in np.flatnonzero(graph.train_mask)[:10]] if configuration.mlp else []
    return build_model(
        graph, configuration.spec, name="matrix", dataset="synthetic", split="full", public=public, canaries=canaries
    )


def side_of(X: object, W: NDArray[np.float64], beta: NDArray[np.float64], rank_cutoff: float) -> Side:
    dense = np.asarray(X.toarray() if sp.issparse(X) else X, dtype=np.float64)
    return Side(dense, W.copy(), beta.copy(), np.ones(len(dense), dtype=np.bool_), rank_cutoff)


def oracle_of(model: BuiltModel) -> Oracle:
    graph, manifest = model.graph, model.manifest
    features = side_of(graph.features, model.weights, model.beta, 1e-5 * float(np.sqrt(manifest.sigma_ref_squared)))
    labels = None
    if manifest.spec.label_hops:
        Y = np.zeros((graph.nodes, graph.num_classes))
        training = np.flatnonzero(graph.train_mask)
        Y[training, graph.labels[training]] = 1.0
        labels = side_of(Y, model.label_weights, model.label_beta, 1e-3)
        labels.in_span = graph.train_mask.copy()
    sigmas = None if manifest.diffusion is None else (manifest.diffusion.sigma_h, manifest.diffusion.sigma_z)
    adjacency = graph.adjacency.toarray()
    return Oracle(manifest.spec, adjacency, graph.labels, graph.train_mask, features, labels, sigmas)


def assert_trained(configuration: Configuration, model: BuiltModel, oracle: Oracle) -> None:
    """The dual variable spans the weights, and so do the coefficients."""
    limit = 1e-12 if configuration.solver is SolverKind.SGD else 1e-8
    assert model.manifest.training.identity_error <= limit
    H = oracle.H()[model.graph.train_mask]
    stacked = np.vstack([side.W[block] for _, side, block in oracle.blocks()])
    assert np.linalg.norm(stacked - H.T @ model.dual) <= 10 * limit * np.linalg.norm(stacked)
    for side in (oracle.features, oracle.label_side):
        if side is not None:
            spanned = np.einsum("nk,bnc->bkc", side.X, side.effective)
            assert np.linalg.norm(side.W - spanned) <= 10 * limit * np.linalg.norm(side.W)


def removals_of(
    configuration: Configuration, oracle: Oracle, rng: np.random.Generator, deletable: NDArray[np.bool_]
) -> list[Removal]:
    """One request of each kind on things that are still there, none of them naming what another one takes."""
    free = rng.permutation(np.flatnonzero(oracle.live & oracle.features.in_span & deletable))
    removals = []
    for kind in configuration.kinds:
        if kind == "edge":
            upper = np.triu(oracle.adjacency * np.outer(oracle.live, oracle.live), 1)
            upper[free[:8]] = upper[:, free[:8]] = 0.0
            edges = np.argwhere(upper)
            if len(edges):
                chosen = edges[rng.permutation(len(edges))[:3]]
                removals.append(Removal(edges=chosen.astype(np.int64)))
            continue
        size = int(rng.integers(1, 5))
        removals.append(of_kind(kind, free[:size]))
        free = free[size:]
    return removals


def of_kind(kind: str, rows: NDArray[np.int64]) -> Removal:
    return Removal(features=rows) if kind == "features" else Removal(nodes=rows)


def drill(configuration: Configuration, model: BuiltModel, cohort: int) -> list[Removal]:
    """A cohort of canaries, or its features; none where only edges are deleted, or there is no such cohort."""
    canaries = model.manifest.canaries
    kinds = [kind for kind in configuration.kinds if kind != "edge"]
    if canaries is None or not kinds or not 1 <= cohort <= canaries.cohorts:
        return []
    rows = [model.graph.node_ids.index(name) for name in canaries.cohort_ids(cohort)]
    return [of_kind(kinds[0], np.array(rows, dtype=np.int64))]


def assert_drilled(model: BuiltModel, cohort: int, norms: Norms, W: NDArray[np.float64]) -> None:
    """The norm was that of the cohort's column of `W` (blocks, d, C), the weights before, and is nothing any more."""
    assert model.manifest.canaries is not None
    before = float(np.linalg.norm(W[:, model.manifest.canaries.column(cohort)], axis=1).sum())
    assert before > 0.0
    assert norms.channel_before == pytest.approx(before, rel=1e-6)
    assert norms.channel_after is not None
    assert norms.channel_after <= 1e-12 * before


def assert_equal(stored: StoredModel, oracle: Oracle) -> None:
    """Weights, rank, coefficients, the representation and every prediction are those of the oracle."""
    resident = stored.resident
    state = resident.committed.state
    pairs = [(state.features, resident.committed.features, oracle.features)]
    if state.labels is not None:
        assert resident.committed.labels is not None
        assert oracle.label_side is not None
        pairs.append((state.labels, resident.committed.labels, oracle.label_side))
    for span, given, side in pairs:
        W = by_block(span.W, state.classes).numpy()
        scale = max(float(np.linalg.norm(side.W)), 1e-9)
        assert np.linalg.norm(W - side.W) <= TOLERANCE * scale
        assert np.array_equal(span.in_span, side.in_span)
        effective = by_block(given.beta + given.rows.matmul(span.T), state.classes).numpy()
        error = np.abs(effective[:, side.in_span] - side.effective[:, side.in_span]).max(initial=0.0)
        assert error <= TOLERANCE * max(np.abs(side.effective).max(), 1e-9)
    if side_changed := oracle.features.rank:
        assert state.features.gram.rank == side_changed
    images = []
    for each, span in zip(resident.committed.live_graph.inputs, state.spans, strict=True):
        rows = each.rows.matmul(torch.eye(each.rows.num_features, dtype=torch.float64))
        images += list(each.operators.images(rows * torch.from_numpy(span.in_span)[:, None]))
    training = oracle.training & oracle.live
    assert np.abs(torch.cat(images, dim=1).numpy() - oracle.H())[training].max(initial=0.0) <= TOLERANCE
    predicted = resident.committed.predictions().probabilities
    assert np.abs(predicted - oracle.probabilities()).max() <= TOLERANCE


def check(configuration: Configuration, path: Path) -> None:
    model = build(configuration)
    oracle = oracle_of(model)
    assert_trained(configuration, model, oracle)
    stored = StoredModel(path, model)
    rng = np.random.default_rng(3)
    deletable = ~model.public & ~np.char.startswith(np.array(model.graph.node_ids), PREFIX)
    for step in range(4):
        drilled = drill(configuration, model, cohort=step)
        removals = [*drilled, *removals_of(configuration, oracle, rng, deletable)]
        expected = [
            np.linalg.norm(oracle.features.effective[:, removal.rows].sum(axis=1), axis=1).sum() for removal in removals
        ]
        outcome = stored.remove(*removals)
        for norms, removal, before in zip(outcome.prepared.projection.norms, removals, expected, strict=True):
            if removal.edges.size:
                assert norms.injected_before is None
            else:
                assert norms.injected_before == pytest.approx(before, rel=1e-6, abs=1e-9)
                assert norms.injected_after == 0.0
        for place, norms in enumerate(outcome.prepared.projection.norms):
            if place < len(drilled):
                assert_drilled(model, step, norms, oracle.features.W)
            else:
                assert (norms.channel_before, norms.channel_after) == (None, None)
        prepared = outcome.prepared
        oracle.remove(prepared.nodes, prepared.feature_rows, prepared.edges)
        assert_equal(stored, oracle)
        assert outcome.span_residual <= TOLERANCE
        if step == 1:
            stored.resident = stored.reloaded()
            assert_equal(stored, oracle)


@pytest.mark.parametrize("configuration", pairwise(), ids=str)
def test_a_configuration_equals_its_recomputation(configuration: Configuration, tmp_path: Path) -> None:
    check(configuration, tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("configuration", every(), ids=str)
def test_all_configurations_equal_their_recomputation(configuration: Configuration, tmp_path: Path) -> None:
    check(configuration, tmp_path / "model")


def test_the_few_configurations_hold_every_pair_of_choices() -> None:
    few = pairwise()
    assert len(few) < 40
    for loss in LossKind:
        assert {c.solver for c in few if c.loss is loss} == (
            {SolverKind.SGD} if loss is LossKind.PLAIN_HINGE else set(SolverKind)
        )
        assert {c.kinds for c in few if c.loss is loss} == {c.kinds for c in few}
