"""The squared loss against from-scratch solutions: drifting sums, and models that forget nodes.

The weights of the drifted sums are compared with a solve in extended precision on the remaining rows.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from model_store.datasets.load import load_dataset
from projector import Model, ModelSpec, fit, from_arrays
from projector.forgetting.certificate import certify
from projector.forgetting.optimum import stacked
from projector.forgetting.status import RepairStatus
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph
from projector.network.inputs import inputs_of
from projector.network.losses import Loss, loss_of, row_weights
from projector.network.propagation import Propagator
from projector.network.representation import DenseRepresentation
from projector.network.spec import Combine, LossKind, PropagationKind
from projector.solvers.newton import Newton
from projector.solvers.normal_equations import ChangedRows, NormalEquations, NormalObjective, targets_of
from tests.support.everyday import everyday
from tests.support.mathematics.references import least_squares
from tests.support.models.structures import (
    STRUCTURES,
    Rows,
    all_zero,
    duplicated_rows,
    rank_deficient,
    single_node,
    wide,
    with_zero_rows,
)

ROWS, COLUMNS, CLASSES, LAMBDA = 120, 12, 3, 1e-4
#: Rows changed by each update, as in a deletion that reaches a few others.
CHANGED = 5


def conditioned(rng: np.random.Generator, rows: int, condition: float) -> Rows:
    """Return rows whose columns have sizes from 1 down to 1 / condition, rotated."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(COLUMNS, COLUMNS)))[0]
    return rng.normal(size=(rows, COLUMNS)) * np.geomspace(1.0, 1.0 / condition, COLUMNS) @ turn


class Drifting:
    """Rows that are exchanged a few at a time, and their sums."""

    def __init__(self, condition: float, seed: int, class_weights: tuple[float, ...] = ()) -> None:
        self._random, self._condition = np.random.default_rng(seed), condition
        self.H = torch.from_numpy(conditioned(self._random, ROWS, condition))
        self.labels = torch.from_numpy(self._random.integers(CLASSES, size=ROWS))
        blocks = (slice(0, COLUMNS // 2), slice(COLUMNS // 2, COLUMNS))
        loss = loss_of(LossKind.SQUARED, class_weights=class_weights)
        self.loss: Loss = loss
        self.equations = NormalEquations.of(self.H, self.Y, blocks, weights=self.weights)

    @property
    def weights(self) -> torch.Tensor | None:
        return row_weights(self.loss, self.labels)

    def changed(self, chosen: torch.Tensor, sizes: tuple[int, ...]) -> ChangedRows:
        weights = self.weights
        return ChangedRows(self.H[chosen], self.Y[chosen], sizes, None if weights is None else weights[chosen])

    @property
    def Y(self) -> torch.Tensor:
        return targets_of(self.labels, CLASSES)

    def update(self) -> None:
        """Change some rows in both blocks and some in the second alone; remove some, and add much longer ones."""
        random, sizes = self._random, (2, CHANGED)
        chosen = torch.from_numpy(random.choice(ROWS, size=CHANGED, replace=False))
        was = self.changed(chosen, sizes)
        rows = torch.from_numpy(conditioned(random, CHANGED, self._condition) * random.choice([1.0, 30.0]))
        rows[2:, : COLUMNS // 2] = self.H[chosen[2:], : COLUMNS // 2]
        self.H = self.H.index_copy(0, chosen, rows)
        self.labels = self.labels.index_copy(0, chosen[:2], torch.from_numpy(random.integers(CLASSES, size=2)))
        now = self.changed(chosen, sizes)
        self.equations = self.equations.after(was, now, lambda: self.H, self.Y, weights=self.weights)

    def objective(self) -> NormalObjective:
        nodes = np.arange(ROWS)
        propagator = Propagator.build(sp.csr_array((ROWS, ROWS)), PropagationKind.SYM, 1.0)
        inputs = inputs_of(ModelSpec(hops=1), FeatureMatrix(self.H.numpy()), sp.csr_array((ROWS, CLASSES)), propagator)
        representation = DenseRepresentation(inputs, nodes, self.H)
        squared = float(ROWS if self.weights is None else self.weights.sum())
        return NormalObjective(representation, self.loss, self.labels, LAMBDA, self.equations, squared)

    def precise(self) -> NDArray[np.longdouble]:
        """Return the minimum in extended precision, by a refined solve."""
        H, Y = self.H.numpy().astype(np.longdouble), self.Y.numpy().astype(np.longdouble)
        D = np.ones((ROWS, 1)) if self.weights is None else self.weights.numpy()[:, None]
        A = H.T @ (D.astype(np.longdouble) * H) / ROWS + LAMBDA * np.eye(COLUMNS, dtype=np.longdouble)
        b, W = H.T @ (D.astype(np.longdouble) * Y) / ROWS, np.zeros((COLUMNS, CLASSES), dtype=np.longdouble)
        for _ in range(30):
            W = W + np.linalg.solve(A.astype(np.float64), (b - A @ W).astype(np.float64))
        return W


def distance_and_bound(drifting: Drifting) -> tuple[float, float, float]:
    """Return the distance of the sums' weights from the minimum, and the bound, absolute and relative."""
    objective = drifting.objective()
    start = objective.at(torch.zeros((COLUMNS, CLASSES), dtype=torch.float64))
    newton = Newton(objective, start, 1e-15, objective.equations.factor(ROWS, LAMBDA).solve)
    while not newton.finished:
        newton.step()
    found = certify(objective, newton.best)
    assert found.relative is not None
    return float(np.linalg.norm(newton.best.W.numpy() - drifting.precise())), found.bound, found.relative


def check_drift(condition: float, updates: int, seed: int, class_weights: tuple[float, ...] = ()) -> None:
    """Check that the bound is never below the distance."""
    drifting = Drifting(condition, seed, class_weights)
    for update in range(1, updates + 1):
        drifting.update()
        if update % max(updates // 10, 1) == 0:
            distance, bound, relative = distance_and_bound(drifting)
            assert distance <= bound
            # The bound is also useful.
            assert relative <= 1e-3


@pytest.mark.parametrize("condition", everyday([1e2, 1e3, 1e4, 1e5, 1e6], 1e3))
def test_the_bound_covers_what_updated_sums_have_drifted(condition: float) -> None:
    check_drift(condition, updates=200, seed=1)


@pytest.mark.parametrize("condition", everyday([1e2, 1e3, 1e4, 1e5, 1e6], 1e3))
def test_the_bound_covers_what_weighted_sums_have_drifted(condition: float) -> None:
    check_drift(condition, updates=200, seed=2, class_weights=(0.1, 1 / 3, 7.0))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("condition", [1e2, 1e3, 1e4, 1e5, 1e6])
def test_the_bound_covers_what_ten_thousand_updates_have_drifted(condition: float) -> None:
    for seed in range(3):
        check_drift(condition, updates=10_000, seed=seed)


def test_the_bound_covers_what_long_rows_leave_behind() -> None:
    drifting = Drifting(1e2, 6)
    chosen, sizes = torch.arange(CHANGED), (CHANGED, CHANGED)
    short, long = drifting.H[chosen], 1e4 * drifting.H[chosen]
    for before, after in ((short, long), (long, short)):
        drifting.H = drifting.H.index_copy(0, chosen, after)
        was, now = (ChangedRows(each, drifting.Y[chosen], sizes) for each in (before, after))
        drifting.equations = drifting.equations.after(was, now, lambda: drifting.H, drifting.Y)
    distance, bound, relative = distance_and_bound(drifting)
    assert distance <= bound
    assert relative <= 1e-3
    # Without their drift, the same weights would seem nearer than they are.
    fresh = replace(drifting.equations, variances=0 * drifting.equations.variances)
    drifting.equations = replace(fresh, target_variances=0 * fresh.target_variances)
    assert distance_and_bound(drifting)[1] < distance


def test_tau_is_at_least_what_sums_have_drifted_and_of_its_size() -> None:
    drifting = Drifting(1e2, 3)
    for _ in range(300):
        drifting.update()
    H, Y = drifting.H.numpy().astype(np.longdouble), drifting.Y.numpy().astype(np.longdouble)
    equations = drifting.equations
    for sums, exact, tau in ((equations.G, H.T @ H, equations.tau), (equations.b, H.T @ Y, equations.target_tau)):
        error = float(np.linalg.norm(sums.numpy() - exact))
        assert error / 2 <= tau <= 30 * error


def test_sums_are_formed_anew_where_as_many_rows_changed_and_their_drift_is_gone() -> None:
    drifting = Drifting(1e2, 4)
    for _ in range(50):
        drifting.update()
    before, all_rows = drifting.equations, (ROWS, ROWS)
    whole = ChangedRows(drifting.H, drifting.Y, all_rows)
    anew = before.after(whole, whole, lambda: drifting.H, drifting.Y)
    fresh = NormalEquations.of(drifting.H, drifting.Y, before.blocks)
    assert (anew.tau, anew.target_tau) == (fresh.tau, fresh.target_tau)
    partly = replace(whole, leading=(1, ROWS))
    later = before.after(partly, partly, lambda: drifting.H, drifting.Y)
    assert later.variances[0, 0] > before.variances[0, 0]
    assert later.variances[:, 1].tolist() == fresh.variances[:, 1].tolist()
    torch.testing.assert_close(later.G[6:], fresh.G[6:], rtol=0, atol=0)


def expected_weights(model: Model, regularization: float) -> NDArray[np.float64]:
    """Return the weights from a decomposition of the explicit H, (p, C)."""
    objective = model._held.objective()
    Y = targets_of(objective.labels, model._held.state.classes).numpy()
    return least_squares(objective.representation.dense().numpy(), Y, regularization)


def forget_and_compare(model: Model, regularization: float, batches: list[NDArray[np.int64]]) -> Model:
    for number, nodes in enumerate(batches):
        held = model._held.live_graph.propagator.edges.adjacency.tocoo()
        kept = model.live & ~np.isin(np.arange(model.live.size), nodes)
        there = np.flatnonzero((held.data != 0) & kept[held.row] & kept[held.col])
        edges = [[int(held.row[there[0]]), int(held.col[there[0]])]] if number % 2 and there.size else []
        model, report = model.forget(nodes=nodes, edges=edges)
        W, best = stacked(model._held.state).numpy(), expected_weights(model, regularization)
        assert report.bound_after is not None
        assert report.repair is RepairStatus.CONVERGED
        # The decomposition rounds, too.
        assert np.linalg.norm(W - best) <= report.bound_after.bound + 1e-9 * np.linalg.norm(best)
    return model


def batches_of(nodes: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    parts = np.split(rng.permutation(nodes), [1, 3, max(3, nodes // 2)])
    return [part for part in parts if part.size]


def graph_on(rows: Rows, rng: np.random.Generator, targets: NDArray[np.generic]) -> Graph:
    n = len(rows)
    adjacency = sp.csr_array(np.triu(rng.random((n, n)) < 2.5 / n, 1).astype(float))
    return from_arrays(adjacency, rows, targets)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "structure",
    everyday(STRUCTURES, rank_deficient, duplicated_rows, with_zero_rows, single_node, all_zero, wide),
)
def test_forgetting_ends_at_the_least_squares_solution_of_what_remains(
    structure: Callable[[np.random.Generator], Rows], dtype: type[np.floating]
) -> None:
    rng = np.random.default_rng(2)
    rows = structure(rng).astype(dtype)
    labels = np.arange(len(rows)) % 3
    labels[:1] = 1
    graph = graph_on(rows, rng, labels)
    if graph.num_classes < 2:
        graph = replace(graph, class_names=("0", "1", "2"))
    spec = ModelSpec(loss=LossKind.SQUARED, regularization=1e-2)
    forget_and_compare(fit(graph, spec), 1e-2, batches_of(len(rows), rng))


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec(propagation=PropagationKind.ROW, combine=Combine.CONCAT, hops=3),
        ModelSpec(combine=Combine.CONCAT, label_hops=2),
        ModelSpec(combine=Combine.CONCAT, diffusion=True, label_hops=1, hops=1),
        ModelSpec(combine=Combine.CONCAT, hops=5),
    ],
    ids=["row", "label reuse", "diffusion", "more columns than rows"],
)
def test_every_kind_of_block_is_updated(spec: ModelSpec) -> None:
    rng = np.random.default_rng(5)
    labels = rng.integers(3, size=150)
    rows = rng.normal(size=(150, 10)) + np.eye(3, 10)[labels]
    graph = replace(graph_on(rows, rng, labels), train_mask=np.arange(150) < (40 if spec.hops == 5 else 130))
    graph = replace(graph, val_mask=np.arange(150) >= 140)
    spec = replace(spec, loss=LossKind.SQUARED, regularization=1e-3)
    model = fit(graph, spec)
    held = model._held.live_graph
    assert (held.keeps_equations, held.keeps_kernel) == (spec.hops != 5, spec.hops == 5)
    forget_and_compare(model, 1e-3, [np.array([7]), np.array([30, 31]), np.array([8]), np.arange(50, 90)])


@pytest.mark.parametrize("targets", [1, 2])
def test_real_valued_targets_one_or_several(targets: int) -> None:
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(120, 6))
    values = rows[:, :targets] * 3 + 0.1 * rng.normal(size=(120, targets))
    values[100:] = np.nan
    model = fit(graph_on(rows, rng, values if targets > 1 else values[:, 0]), ModelSpec(loss=LossKind.SQUARED, hops=1))
    assert model.predict().shape == (120, targets)
    assert int((model._held.live_graph.targets == 0).sum()) == 100
    left = forget_and_compare(model, 1e-4, [np.array([3]), np.array([4, 5, 110])])
    assert not left.predict()[3].any()


def test_an_update_goes_from_the_rows_as_they_were_and_forms_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    labels = rng.integers(3, size=400)
    graph = graph_on(rng.normal(size=(400, 8)), rng, labels)
    model, _ = fit(graph, ModelSpec(loss=LossKind.SQUARED, combine=Combine.CONCAT)).forget(nodes=[0])
    counted = []
    after = NormalEquations.after

    def watched(self: NormalEquations, was: ChangedRows, now: ChangedRows, *others: Any) -> NormalEquations:
        counted.append((was.leading, now.leading))
        return after(self, was, now, *others)

    monkeypatch.setattr(NormalEquations, "after", watched)
    _, report = model.forget(nodes=[5])
    assert report.repair is RepairStatus.CONVERGED
    [(was, now)] = counted
    # The node itself leaves; more of the others change the more hops a block reaches.
    assert list(was) == sorted(was)
    assert [gone - left for gone, left in zip(was, now, strict=True)] == [1, 1, 1]
    assert 1 <= was[0] < was[2] < 400 / 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("combine", list(Combine))
def test_forgetting_on_cora_ends_at_the_least_squares_solution(combine: Combine) -> None:
    spec = ModelSpec(loss=LossKind.SQUARED, combine=combine, regularization=1e-3)
    nodes = np.random.default_rng(0).permutation(2_708)
    forget_and_compare(fit(load_dataset("cora", data_dirs=[]), spec), 1e-3, [nodes[:1], nodes[1:21], nodes[21:221]])
