"""Unlearning by dual variables ends where a machine without the point does."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from benchmarks.baselines.dual_unlearning import DualMachine, Place
from benchmarks.baselines.protocol import Array
from benchmarks.paper.forgetting.dual_unlearning import METHOD, dual_unlearning
from benchmarks.paper.units import Unit, graph_of

pytestmark = pytest.mark.ci

LAMBDA = 0.3


def drawn(kind: str) -> tuple[Array, Array]:
    random = np.random.default_rng(4)
    rows = random.normal(size=(40, 60 if kind == "more columns than rows" else 3))
    if kind == "equal rows":
        rows[20:] = rows[:20]
    signs = np.where(rows[:, 0] + 0.5 * random.normal(size=40) > 0, 1.0, -1.0)
    if kind == "equal rows":
        signs[20:] = signs[:20]
    return rows, signs


KINDS = ("overlapping", "more columns than rows", "equal rows")


@pytest.mark.parametrize("kind", KINDS)
def test_the_learned_machine_minimises_the_printed_objective(kind: str) -> None:
    rows, signs = drawn(kind)
    machine = DualMachine.of(rows, signs, LAMBDA)
    assert machine.violation() < 1e-6
    # The dual, as a problem with bounds alone.
    found = minimize(
        lambda a: (a @ machine.Q @ a / 2 - a.sum(), machine.Q @ a - 1),
        np.full(40, 0.5),
        jac=True,
        bounds=[(0, 1)] * 40,
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 10_000},
    )
    expected = (found.x * signs) @ rows / LAMBDA
    np.testing.assert_allclose(machine.weights(rows, signs, LAMBDA), expected, atol=1e-4)
    # Strong duality: the primal objective has the dual's value.
    w = machine.weights(rows, signs, LAMBDA)
    primal = LAMBDA / 2 * w @ w + np.maximum(0, 1 - signs * (rows @ w)).sum()
    dual = machine.alpha.sum() - machine.alpha @ machine.Q @ machine.alpha / 2
    assert primal == pytest.approx(dual, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_unlearning_point_after_point_is_fitting_without_them(kind: str) -> None:
    rows, signs = drawn(kind)
    machine, gone = DualMachine.of(rows, signs, LAMBDA), list[int]()
    for point in np.random.default_rng(1).permutation(40)[:25].tolist():
        machine = machine.without(point)
        gone.append(point)
        assert machine.places[point] == Place.ABSENT
        assert machine.alpha[point] == 0
        assert machine.violation() < 1e-6
        kept = np.setdiff1d(np.arange(40), gone)
        again = DualMachine.of(rows[kept], signs[kept], LAMBDA)
        w, expected = machine.weights(rows, signs, LAMBDA), again.weights(rows[kept], signs[kept], LAMBDA)
        np.testing.assert_allclose(w, expected, atol=1e-5)


def test_a_point_outside_the_margin_leaves_nothing_to_do() -> None:
    rows, signs = drawn("overlapping")
    machine = DualMachine.of(rows, signs, LAMBDA)
    for point in np.flatnonzero(machine.places == Place.OUTSIDE).tolist():
        left = machine.without(point)
        assert left.iterations == 0
        np.testing.assert_allclose(left.alpha, machine.alpha, atol=1e-9)


def test_a_point_on_the_margin_can_take_more_iterations_than_the_margin_has_points() -> None:
    rows, signs = drawn("overlapping")
    machine = DualMachine.of(rows, signs, LAMBDA)
    most = max(machine.without(point).iterations for point in range(40))
    assert most > machine.margin.size


def test_the_experiment_ends_at_machines_that_never_had_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.paper.forgetting.dual_unlearning._SHARE", 0.2)
    unit = Unit("dual-unlearning", "synthetic:n=60,d=12,classes=3,seed=1", METHOD, 0)
    graph = graph_of(unit)
    found: dict[str, Any] = dict(dual_unlearning(graph, unit))["0.2"]
    assert found["nodes"] == round(0.2 * graph.train_mask.sum())
    assert found["weights"] == pytest.approx(0, abs=1e-6)
    assert found["most_iterations"] >= found["iterations"] > 0
    assert 0 < found["margin"] < graph.train_mask.sum()
