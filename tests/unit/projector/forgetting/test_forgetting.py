"""Deleting from a stored model: the result equals a recomputation without the deleted nodes.

`tests/property/test_mutants.py` runs these tests on broken copies of the code and expects them to fail.
"""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from model_store.build import BuiltModel
from model_store.datasets.load import load_dataset
from projector.forgetting.batch import Removal
from projector.forgetting.factors import whole
from projector.forgetting.gram import FactorMethod, factorise
from projector.graph.graph import Graph
from projector.network.spec import Combine, ModelSpec, PropagationKind
from service.domain.states import RepairPolicy
from tests.support.everyday import every_pair, everyday
from tests.support.models.stored import SMALL, Oracle, StoredModel, built


def rows_of(graph: Graph, nodes: list[str]) -> list[int]:
    return [graph.node_ids.index(node) for node in nodes]


def test_the_feature_injection_test(tmp_path: Path, graph: Graph, injected: BuiltModel, channel: list[str]) -> None:
    model, oracle = StoredModel(tmp_path / "model", injected), Oracle(injected)
    rows = rows_of(graph, channel)
    outcome = model.delete(rows)
    projection, norms = outcome.prepared.projection, outcome.prepared.projection.norms[0]
    assert norms.channel_before is not None
    assert norms.channel_after is not None
    assert norms.channel_before > 0
    assert norms.injected_before == pytest.approx(norms.channel_before, rel=1e-9)
    assert norms.channel_after <= 1e-9 * norms.channel_before
    assert projection.lost_direction_norm_before is not None
    assert projection.lost_direction_norm_after is not None
    assert projection.lost_direction_norm_after <= 1e-9 * projection.lost_direction_norm_before
    assert outcome.span_residual <= 1e-8
    oracle.delete(rows)
    W = model.store.read_version(model.ref).features.weights
    assert np.linalg.norm(W - oracle.W) <= 1e-9 * np.linalg.norm(oracle.W)
    assert projection.directions_removed == injected.manifest.rank - oracle.rank
    assert projection.state.features.gram.rank == oracle.rank


def test_the_surviving_rows_on_disk_explain_the_weights_after_every_batch(tmp_path: Path, plain: BuiltModel) -> None:
    model = StoredModel(tmp_path / "model", plain)
    rng = np.random.default_rng(1)
    order = rng.permutation(plain.graph.nodes)
    for size in (1, 1, 2, 16, 64, 5):
        batch, order = np.split(order, [size])
        assert model.delete(batch.tolist()).span_residual <= 1e-8


def test_every_training_node_had_weight_and_has_none_afterwards(tmp_path: Path, plain: BuiltModel) -> None:
    model = StoredModel(tmp_path / "model", plain)
    training = np.flatnonzero(plain.graph.train_mask & (np.diff(_indptr(plain)) > 0))
    nodes = np.random.default_rng(2).choice(training, size=40, replace=False)
    for norms in model.delete(*[[node] for node in nodes.tolist()]).prepared.projection.norms:
        assert norms.injected_before is not None
        assert norms.injected_before > 0
        assert norms.injected_after == 0


def _indptr(model: BuiltModel) -> np.ndarray:
    """Return row pointers of the CSR features; a node without features has no weight."""
    assert isinstance(model.graph.features, sp.csr_array)
    return np.asarray(model.graph.features.indptr)


def test_ordinary_batches_are_downdated_and_never_recomputed(tmp_path: Path, plain: BuiltModel) -> None:
    model = StoredModel(tmp_path / "model", plain)
    order = np.random.default_rng(3).permutation(plain.graph.nodes)
    for start in range(0, 60, 6):
        projection = model.delete(order[start : start + 6].tolist()).prepared.projection
        assert projection.factor_method is FactorMethod.DOWNDATE
        fresh = factorise(
            model.resident.committed.features.rows,
            projection.state.live,
            sigma_ref_squared=plain.manifest.sigma_ref_squared,
        )
        error = whole(projection.state.features.gram.M_pinv) - whole(fresh.M_pinv)
        assert projection.state.features.gram.rank == fresh.rank
        assert float(error.norm() / whole(fresh.M_pinv).norm()) <= 1e-8


def test_a_model_with_no_hops_is_stored_without_edges_and_forgets(tmp_path: Path, graph: Graph) -> None:
    built_on = built(graph, ModelSpec(hops=0), cohorts=2)
    assert (built_on.manifest.edges, built_on.graph.edges) == (0, 0)
    model, oracle = StoredModel(tmp_path / "model", built_on, RepairPolicy.ALWAYS), Oracle(built_on)
    assert built_on.manifest.canaries is not None
    canaries = rows_of(built_on.graph, list(built_on.manifest.canaries.cohort_ids(1)))
    for rows in (canaries, [3, 14], [7]):
        outcome = model.delete(rows)
        oracle.delete(rows)
        assert outcome.span_residual <= 1e-8
        assert outcome.prepared.outcome.after is not None
        assert outcome.prepared.outcome.after.retrained
    assert model.reloaded().committed.live_graph.edges == 0
    assert outcome.prepared.projection.state.features.gram.rank == oracle.rank


@every_pair(combine=list(Combine), propagation=list(PropagationKind), self_loops=[0.0, 1.0])
def test_predictions_are_those_of_the_remaining_graph(
    tmp_path: Path, combine: Combine, propagation: PropagationKind, self_loops: float
) -> None:
    spec = ModelSpec(combine=combine, propagation=propagation, self_loops=self_loops)
    small = built(load_dataset(SMALL, data_dirs=[]), spec)
    model, oracle = StoredModel(tmp_path / "model", small), Oracle(small)
    order = np.random.default_rng(4).permutation(small.graph.nodes)
    for size in (1, 30, 7, 100):
        batch, order = np.split(order, [size])
        outcome = model.delete(batch.tolist())
        oracle.delete(batch.tolist())
        snapshot = outcome.prepared.snapshot
        assert np.array_equal(snapshot.live, oracle.live)
        assert np.abs(snapshot.probabilities[oracle.live] - oracle.probabilities()).max() <= 1e-10
        assert not snapshot.probabilities[~oracle.live].any()


def test_a_restart_continues_as_if_it_had_not_happened(tmp_path: Path, graph: Graph, plain: BuiltModel) -> None:
    straight, restarted = StoredModel(tmp_path / "a", plain), StoredModel(tmp_path / "b", plain)
    order = np.random.default_rng(5).permutation(graph.nodes)
    for start in range(0, 30, 10):
        batch = order[start : start + 10].tolist()
        before, after = straight.delete(batch), restarted.delete(batch)
        restarted.resident = restarted.reloaded()
        first, second = before.prepared.projection, after.prepared.projection
        assert [n.injected_before for n in first.norms] == pytest.approx([n.injected_before for n in second.norms])
        one, other = first.state.features.W, second.state.features.W
        assert float((one - other).norm()) <= 1e-12 * float(one.norm())
        assert restarted.resident.committed.node_ids == straight.resident.committed.node_ids


@pytest.mark.parametrize(("label_hops", "mlp_width"), everyday([(0, 0), (1, 0), (3, 0), (0, 150)], (3, 0), (0, 150)))
def test_nodes_features_and_edges_leave_a_stored_model_for_good(
    tmp_path: Path, label_hops: int, mlp_width: int
) -> None:
    spec = ModelSpec(combine=Combine.CONCAT, label_hops=label_hops, mlp_width=mlp_width)
    graph = load_dataset(SMALL, data_dirs=[])
    public = np.flatnonzero(graph.train_mask)[:50] if mlp_width else np.empty(0, dtype=np.int64)
    small = built(graph, spec, public=[graph.node_ids[row] for row in public])
    model, oracle = StoredModel(tmp_path / "model", small), Oracle(small)
    order = np.random.default_rng(6).permutation(np.setdiff1d(np.arange(graph.nodes), public))
    joined = np.argwhere(np.triu(small.graph.adjacency.toarray()))
    for turn in range(4):
        nodes, features = order[turn * 40 : turn * 40 + 20], order[turn * 40 + 20 : turn * 40 + 40]
        edges = joined[oracle.live[joined].all(axis=1) & ~np.isin(joined, nodes).any(axis=1)][turn::40]
        outcome = model.remove(
            Removal(nodes=nodes),
            Removal(features=features),
            Removal(edges=edges),
        )
        oracle.delete(nodes.tolist(), features=features.tolist(), edges=[(i, j) for i, j in edges.tolist()])
        assert outcome.span_residual <= 1e-8
        assert outcome.prepared.projection.state.features.gram.rank == oracle.rank
        before = model.resident.committed.predictions()
        assert np.abs(before.probabilities[oracle.live] - oracle.probabilities()).max() <= 1e-9
        model.resident = model.reloaded()
        assert np.abs(model.resident.committed.predictions().probabilities - before.probabilities).max() <= 1e-12
        version = model.store.read_version(model.ref)
        assert np.array_equal(version.live, oracle.live)
        assert not version.featured[order[: turn * 40 + 40]].any()
        assert version.labels.weights.shape == (label_hops, 4, 4)
        assert np.linalg.norm(version.labels.weights - oracle.V) <= 1e-9


def test_everything_but_one_node_can_be_deleted(tmp_path: Path) -> None:
    small = built(load_dataset(SMALL, data_dirs=[]))
    model, oracle = StoredModel(tmp_path / "model", small), Oracle(small)
    batch = list(range(1, small.graph.nodes))
    outcome = model.delete(batch)
    oracle.delete(batch)
    assert outcome.prepared.projection.state.features.gram.rank == oracle.rank == 1
    assert np.abs(outcome.prepared.snapshot.probabilities[:1] - oracle.probabilities()).max() <= 1e-9
    assert outcome.span_residual <= 1e-8


def test_the_last_node_of_a_class_can_be_deleted(tmp_path: Path) -> None:
    small = built(load_dataset(SMALL, data_dirs=[]))
    model, oracle = StoredModel(tmp_path / "model", small), Oracle(small)
    batch = np.flatnonzero(small.graph.labels == 2).tolist()
    outcome = model.delete(batch)
    oracle.delete(batch)
    assert np.abs(outcome.prepared.snapshot.probabilities[oracle.live] - oracle.probabilities()).max() <= 1e-9
    assert outcome.span_residual <= 1e-8
