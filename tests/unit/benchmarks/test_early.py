"""The paper's own training: descent with momentum that stops early, and what each method makes of its weights."""

import numpy as np
import pytest

from benchmarks.baselines.linear import remaining, representation, stacked
from benchmarks.paper.forgetting.early import SPEC, STARTED, descended, early, stopped
from benchmarks.paper.units import Unit
from tests.support.mathematics.baselines import signs, small_graph, sum_gradient

pytestmark = pytest.mark.ci


def test_descent_has_momentum_and_returns_the_best_iteration_before_ten_without_a_rise() -> None:
    graph = small_graph(nodes=60)
    rows, validation = (np.flatnonzero(mask) for mask in (graph.train_mask, graph.val_mask))
    H, seen, s = representation(graph, SPEC, rows), representation(graph, SPEC, validation), signs(graph, rows)
    labels = graph.labels[validation]
    W, velocity = np.zeros((5, 3)), np.zeros((5, 3))
    weights, right = [W], [0.0]
    for _ in range(40):
        slope = np.stack([sum_gradient(H, s[:, c], W[:, c], 1e-6) for c in range(3)], axis=1) / rows.size
        velocity = 0.9 * velocity + slope
        W = W - 0.1 * velocity
        weights.append(W)
        right.append(float(((seen @ W).argmax(axis=1) == labels).mean()))
    found, iteration, share = descended(H, s, seen, labels, 0.1)
    assert share == right[iteration] == max(right[: iteration + 11])
    assert max(right[:iteration]) < share
    np.testing.assert_allclose(found, weights[iteration], atol=1e-12)


def test_retraining_is_the_same_descent_on_the_remaining_graph_and_projections_keep_what_the_rest_spans() -> None:
    graph = small_graph(nodes=60)
    trained, nodes = stopped(graph), np.flatnonzero(graph.train_mask)[:2]
    left = trained.unlearn(nodes)
    np.testing.assert_array_equal(left.weights, stopped(remaining(graph, nodes)).weights)
    # More nodes than features remain, so nothing is projected away.
    kept = STARTED["projection, all live nodes"](trained).unlearn(nodes)
    assert kept.weights is not None
    np.testing.assert_allclose(kept.weights, trained.weights, atol=1e-9)
    moved = STARTED["fisher+, without noise"](trained).unlearn(nodes).weights
    same = STARTED["influence+, without noise"](trained).unlearn(nodes).weights
    assert moved is not None
    assert same is not None
    # Away from the optimum they differ: Influence+ moves by the change of the gradient alone.
    assert np.linalg.norm(stacked(moved) - stacked(same)) > 1e-2


def test_retraining_is_at_distance_zero_and_only_injections_have_channel_norms() -> None:
    cases = dict(early(small_graph(nodes=60), Unit("early-stopping", "small", "retraining", 0)))
    assert {case.split(",")[0] for case in cases} == {"closeness", "injection"}
    for case, figures in cases.items():
        assert figures["weights"] == 0
        assert None not in figures.values()
        assert ("channel_norm_after" in figures) == case.startswith("injection")
