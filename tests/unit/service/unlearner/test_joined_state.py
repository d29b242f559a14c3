"""A batch by which something joins, in memory, in its version's folder and in the base of the store: the same model."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from model_store.base.erasure import Erasure
from model_store.build import build_model
from model_store.datasets.load import load_dataset
from model_store.store import Store
from model_store.versions import VersionRef
from projector.graph.graph import NO_LABEL, Graph, feature_rows
from projector.network.spec import LossKind, ModelSpec
from service.domain.kinds import Part, RequestKind
from service.domain.records import NodeContent, QueuedRequest, Targets
from service.domain.states import RepairPolicy, RequestStatus
from service.unlearner.claims import CommittedGraph, DecryptedRequest, Known
from service.unlearner.committed import version_state
from service.unlearner.joining_batch import JoiningBatch
from service.unlearner.measurement import stored_span_residual
from service.unlearner.placement import Placement
from service.unlearner.resident import Resident
from service.unlearner.resolve import resolve

COLUMNS = 12


def dense(graph: Graph) -> Graph:
    return replace(graph, features=feature_rows(graph.features, np.arange(graph.nodes)).astype(np.float32))


def real_valued(graph: Graph) -> Graph:
    values = np.random.default_rng(1).standard_normal((graph.nodes, 2))
    return replace(graph, labels=np.zeros_like(graph.labels), class_names=("height", "weight"), values=values)


def same(graph: Graph) -> Graph:
    return graph


#: With the label of a new node; None for the name of a class.
VARIANTS: dict[str, tuple[Callable[[Graph], Graph], ModelSpec, tuple[float, ...] | None]] = {
    "labels are an input": (same, ModelSpec(label_hops=2), None),
    "dense float32": (dense, ModelSpec(), None),
    "real-valued targets": (real_valued, ModelSpec(loss=LossKind.SQUARED), (0.5, -0.5)),
}


def request(kind: RequestKind, content: dict[str, NodeContent], *edges: tuple[str, str]) -> DecryptedRequest:
    targets = Targets(nodes=tuple(content), edges=edges, content=content if kind.rules.joins else {})
    received = datetime(2026, 3, 2, tzinfo=UTC)
    queued = QueuedRequest(uuid4(), kind, RequestStatus.QUEUED, targets.count, b"", None, received, None)
    return DecryptedRequest(queued, targets)


def loaded(store: Store, placement: Placement) -> Resident:
    """Load what the store has committed, as a start does."""
    ref = store.current()
    edit = store.edit(ref)
    return Resident.load(
        store.manifest,
        store.load_base(),
        store.read_version(ref),
        ref.version,
        placement,
        stale_coefficients=store.stale_coefficients(ref),
        edited=() if edit is None or edit.coefficients is None else edit.coefficients,
    )


def assert_same(one: Resident, other: Resident) -> None:
    first, second = one.committed, other.committed
    np.testing.assert_allclose(second.predictions().probabilities, first.predictions().probabilities, atol=1e-10)
    for ours, theirs in zip(first.coefficients(), second.coefficients(), strict=True):
        np.testing.assert_allclose(theirs, ours, atol=1e-9)
    assert list(second.node_ids) == list(first.node_ids)
    assert np.array_equal(second.live_graph.targets, first.live_graph.targets)
    assert np.array_equal(second.public, first.public)


@pytest.mark.parametrize("policy", ["never", "deferred", "always"])
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_a_batch_is_the_same_in_memory_after_a_crash_and_once_it_is_carried_out(
    variant: str, policy: str, tmp_path: Path
) -> None:
    change_of, spec, label = VARIANTS[variant]
    graph = change_of(load_dataset(f"synthetic:n=80,d={COLUMNS},classes=3,seed=3", data_dirs=[]))
    build_model(graph, spec, name="small", dataset="synthetic", split="full").write(tmp_path / "model")
    store = Store.open(tmp_path / "model")
    placement = Placement("cpu", RepairPolicy.NEVER if policy == "never" else RepairPolicy.ALWAYS)
    resident = loaded(store, placement)
    trained = np.flatnonzero(graph.train_mask)[:3]
    first, second, third = (graph.node_ids[row] for row in trained)
    names = store.manifest.classes
    one, two = (label or names[0]), (label or names[1])
    added = request(
        RequestKind.ADDITION,
        {"new": NodeContent(tuple(np.linspace(-1, 1, COLUMNS).tolist()), one), "bare": NodeContent({"3": 2.0})},
        ("new", "5"),
        ("bare", "new"),
    )
    corrected = request(RequestKind.CORRECTION, {first: NodeContent({"0": 1.0}, two), second: NodeContent({"1": 1.0})})
    left = request(RequestKind.NODE, {"40": NodeContent()})
    claimed = [added, corrected, left]
    if policy != "never":
        claimed.append(request(RequestKind.LABEL, {third: NodeContent()}))

    committed = resident.committed
    rows = {node: row for row, node in enumerate(graph.node_ids)}
    trains = committed.live_graph.targets != NO_LABEL
    present = CommittedGraph(rows, committed.state.features.in_span, trains, committed.live_graph.propagator.edges)
    changes = resolve(claimed, present, Known({part: {} for part in Part})).changes
    assert len(changes) == len(claimed)
    joins = JoiningBatch.of(changes, committed, store.manifest)
    assert joins.counts == (2, 2, 2, 1)
    budget_s = 0.0 if policy == "deferred" else 1e9
    prepared = resident.prepare([change.removal for change in changes], joins, budget_s=budget_s)
    assert prepared.edit is not None
    assert (prepared.edit.coefficients is None) == (policy == "always")
    ref = VersionRef(1, 1)
    edges = prepared.live_graph.edges
    store.write_version(ref, version_state(prepared.state), edges=edges, beta_version=1, edit=prepared.edit)
    store.set_current(ref)
    resident.commit(prepared)
    assert_same(resident, loaded(store, placement))

    store.write_beta(*resident.committed.coefficients(), version=1, fencing=1)
    store.erase(Erasure(nodes=np.array([rows["40"]])), fencing=1, keep=ref)
    store.grow(ref, fencing=1)
    assert not store.is_ungrown(ref)
    assert_same(resident, loaded(store, placement))
    assert stored_span_residual(store, store.read_version(ref)) < 1e-8


def test_a_start_keeps_the_scale_that_much_longer_rows_have_raised(tmp_path: Path) -> None:
    graph = dense(load_dataset(f"synthetic:n=80,d={COLUMNS},classes=3,seed=3", data_dirs=[]))
    build_model(graph, ModelSpec(), name="small", dataset="synthetic", split="full").write(tmp_path / "model")
    store, placement = Store.open(tmp_path / "model"), Placement("cpu", RepairPolicy.NEVER)
    resident = loaded(store, placement)
    scale = store.manifest.sigma_ref_squared
    long = tuple((99 * scale**0.5 * np.eye(COLUMNS)[0]).tolist())
    added = request(RequestKind.ADDITION, {"one": NodeContent(long), "two": NodeContent(long)})
    committed = resident.committed
    edges = committed.live_graph.propagator.edges
    present = CommittedGraph({}, committed.state.features.in_span, committed.live_graph.targets != NO_LABEL, edges)
    [change] = resolve([added], present, Known({part: {} for part in Part})).changes
    prepared = resident.prepare([change.removal], JoiningBatch.of([change], committed, store.manifest))
    raised = prepared.state.features.gram
    assert raised.sigma_ref_squared > 1e4 * scale
    ref, edge_count = VersionRef(1, 1), prepared.live_graph.edges
    store.write_version(ref, version_state(prepared.state), edges=edge_count, beta_version=1, edit=prepared.edit)
    store.set_current(ref)
    found = loaded(store, placement).committed.state.features.gram
    assert (found.sigma_ref_squared, found.rank) == (raised.sigma_ref_squared, raised.rank)
