"""The paper's own training: descent with momentum that stops early, and what each method makes of its weights."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from benchmarks.baselines.linear import remaining, representation, stacked
from benchmarks.baselines.protocol import BaselineError
from benchmarks.paper.forgetting.early import (
    FISHER,
    INFLUENCE,
    LAMBDAS,
    LIVE,
    MOMENTUM,
    OPTION_1,
    PAPERS,
    PATIENCE,
    RETRAINING,
    STARTED,
    Descent,
    at,
    early,
    spec_at,
    stopped,
    training,
)
from benchmarks.paper.inference.membership import early_membership
from benchmarks.paper.units import Unit
from projector.graph.graph import Graph
from tests.support.mathematics.baselines import signs, small_graph, sum_gradient

pytestmark = pytest.mark.ci

SPEC = spec_at(LIVE)
GRAPH = small_graph(nodes=60)


def scaled(graph: Graph, by: float) -> Graph:
    assert isinstance(graph.features, np.ndarray)
    return replace(graph, features=by * graph.features)


def by_hand(graph: Graph, rate: float, steps: int) -> list[NDArray[np.float64]]:
    """Return zero and the iterates after it, from rows that were propagated once."""
    rows = np.flatnonzero(graph.train_mask)
    H, s = representation(graph, SPEC, rows), signs(graph, rows)
    W, velocity = np.zeros((5, 3)), np.zeros((5, 3))
    iterates = [W]
    for _ in range(steps):
        slope = np.stack([sum_gradient(H, s[:, c], W[:, c], 1e-6) for c in range(3)], axis=1) / rows.size
        velocity = MOMENTUM * velocity + slope
        W = W - rate * velocity
        iterates.append(W)
    return iterates


@pytest.mark.parametrize("sparse", [False, True])
def test_descent_has_momentum_and_keeps_the_iteration_that_no_other_beats_within_its_patience(sparse: bool) -> None:
    graph = replace(GRAPH, features=sp.csr_array(GRAPH.features)) if sparse else GRAPH
    found, iteration, share = Descent.of(graph, SPEC).until_it_stops(0.1)
    iterates = by_hand(GRAPH, 0.1, iteration + PATIENCE)
    validation = np.flatnonzero(GRAPH.val_mask)
    H = representation(GRAPH, SPEC, validation)
    right = [float(((H @ W).argmax(axis=1) == GRAPH.labels[validation]).mean()) for W in iterates[1:]]
    assert share == right[iteration - 1] == max(right)
    assert max(right[: iteration - 1], default=0.0) < share
    np.testing.assert_allclose(found, iterates[iteration], atol=1e-12)


def test_a_trained_model_is_far_below_the_objective_at_zero() -> None:
    trained = stopped(GRAPH, SPEC)
    figures = training(trained)
    zero, reached = figures["objective_at_zero"], figures["objective"]
    assert zero is not None
    assert reached is not None
    assert zero == pytest.approx(Descent.of(GRAPH, SPEC).objective(np.zeros((5, 3))))
    assert reached < zero / 2
    H, s = (each(GRAPH, np.flatnonzero(GRAPH.train_mask)) for each in (lambda g, r: representation(g, SPEC, r), signs))
    W = stacked(trained.weights)
    losses = np.logaddexp(0, -s * (H @ W)).mean(axis=0).sum()
    assert reached == pytest.approx(losses + 1e-6 / 2 * (W**2).sum())


def test_a_rate_at_which_descent_diverges_is_left_out() -> None:
    assert Descent.of(GRAPH, SPEC).stable_rates() == [0.1, 1.0]
    # At eight times the features, descent at rate 1 is above the limit; at the lower rate it still descends.
    large = scaled(GRAPH, 8.0)
    descent = Descent.of(large, SPEC)
    assert descent.stable_rates() == [0.1]
    assert stopped(large, SPEC).rate == 0.1
    zero = descent.objective(np.zeros((5, 3)))
    steady, wild = ([descent.objective(W) for W, _ in islice(descent.iterates(rate), 20)] for rate in (0.1, 1.0))
    assert max(steady) < zero < max(wild)
    with pytest.raises(BaselineError, match="Scale the features down"):
        Descent.of(scaled(GRAPH, 1e3), SPEC).stable_rates()


def test_retraining_takes_as_many_iterations_at_the_same_rate_on_the_remaining_graph() -> None:
    trained, nodes = stopped(GRAPH, SPEC), np.flatnonzero(GRAPH.train_mask)[:2]
    left = trained.unlearn(nodes)
    assert (left.iterations, left.rate) == (trained.iterations, trained.rate)
    expected = by_hand(remaining(GRAPH, nodes), trained.rate, trained.iterations)[-1]
    np.testing.assert_allclose(stacked(left.weights), expected, atol=1e-10)
    assert not left.live[nodes].any()


def test_projections_keep_what_the_rest_spans_and_newton_steps_differ_away_from_the_optimum() -> None:
    trained, nodes = stopped(GRAPH, SPEC), np.flatnonzero(GRAPH.train_mask)[:2]
    for name in (LIVE, OPTION_1):
        # More nodes than features remain, so nothing is projected away.
        kept = STARTED[name](trained).unlearn(nodes)
        assert kept.weights is not None
        np.testing.assert_allclose(kept.weights, trained.weights, atol=1e-9)
    moved, same = (STARTED[at(each, PAPERS)](trained).unlearn(nodes).weights for each in (FISHER, INFLUENCE))
    assert moved is not None
    assert same is not None
    # Influence+ moves by the change of the gradient alone.
    assert np.linalg.norm(stacked(moved) - stacked(same)) > 1e-2


def test_each_method_is_trained_at_the_lambda_that_it_names() -> None:
    assert {spec_at(method).regularization for method in STARTED} == set(LAMBDAS.values())
    assert spec_at(LIVE).regularization == 1e-6
    assert spec_at(at(FISHER, "1e-2")).regularization == 1e-2


def test_retraining_is_at_distance_zero_and_only_injections_have_channel_norms() -> None:
    cases = dict(early(GRAPH, Unit("early-stopping", "small", at(RETRAINING, PAPERS), 0)))
    assert {case.split(",")[0] for case in cases} == {"closeness", "injection"}
    for case, figures in cases.items():
        assert figures["weights"] == figures["deleted"] == figures["remaining"] == figures["test"] == 0
        assert None not in figures.values()
        assert ("channel_norm_after" in figures) == case.startswith("injection")


def test_membership_after_early_stopping_reports_how_far_the_victims_were_trained() -> None:
    cases = list(early_membership(GRAPH, Unit("early-membership", "small", LIVE, 0)))
    assert len(cases) == 10
    for _, figures in cases:
        assert {"deleted_before", "deleted_after", "others_after", "balanced_after"} <= figures.keys()
        objective, zero = figures["objective"], figures["objective_at_zero"]
        assert objective is not None
        assert zero is not None
        assert objective < zero
