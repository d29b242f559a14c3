"""Deleted edges: the scores by hand, and their results."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from benchmarks.attacks.black_box import recorded
from benchmarks.attacks.edges import by_change, by_similarity, by_trend
from benchmarks.attacks.ranking import auc
from benchmarks.baselines.linear import fitted, train_linear
from benchmarks.paper.inference.edges import drawn_pairs
from benchmarks.paper.inference.versions import leaking
from projector.network.spec import LossKind
from tests.support.mathematics.attacks import SPECS, attacked

pytestmark = pytest.mark.ci

Matrix = NDArray[np.float64]


def sure(*confidence: float) -> Matrix:
    return np.stack([confidence, 1 - np.array(confidence)], axis=1)


def test_the_scores_by_hand_on_a_path_of_four_nodes_of_which_one_has_no_edge_left() -> None:
    adjacency = sp.csr_array(np.array([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]], dtype=float))
    before, after = recorded(sure(0.9, 0.8, 0.7, 0.9)), recorded(sure(0.9, 0.6, 0.8, 0.5))
    pairs = np.array([[0, 1], [1, 2], [2, 3]])
    np.testing.assert_allclose(by_change(before, after, pairs), [0, 0.1, 0.1])
    # Against their neighbours: 0.6 - 0.9, 0.85 - 0.6, 0.6 - 0.8, and none for the last.
    np.testing.assert_allclose(by_trend(after, adjacency, pairs), [-0.3 + 0.25, 0.25 - 0.2, -0.2])
    length = np.hypot
    cosines = [(0.9 * 0.6 + 0.1 * 0.4) / length(0.9, 0.1) / length(0.6, 0.4)]
    cosines += [(0.6 * 0.8 + 0.4 * 0.2) / length(0.6, 0.4) / length(0.8, 0.2)]
    cosines += [(0.8 * 0.5 + 0.2 * 0.5) / length(0.8, 0.2) / length(0.5, 0.5)]
    np.testing.assert_allclose(by_similarity(after, pairs), cosines)


@pytest.mark.parametrize("loss", list(SPECS))
def test_deleted_edges_are_found_as_are_answers_that_still_use_them_and_weights_that_leak_are_not(
    loss: LossKind,
) -> None:
    # A lambda so large that weights hardly move.
    spec = replace(SPECS[loss], regularization=1e-1)
    graph, _ = attacked(spec, nodes=400, features=12)
    deleted, kept, never = drawn_pairs(graph, 0)
    assert len(deleted) == 8
    model = fitted(graph, spec)
    anew = train_linear(graph.without_edges(deleted), spec)
    leak = leaking(model, anew, 0)

    def area(before: Matrix, after: Matrix) -> tuple[float, float]:
        versions = recorded(before), recorded(after)
        found, there, nowhere = (by_change(*versions, each) for each in (deleted, kept, never))
        return auc(found, there), auc(found, nowhere)

    assert min(area(model.predict(), anew.predict())) > 0.85
    # A service that forgot the edges in training but answers as if they existed.
    assert min(area(anew.predict_on(graph), anew.predict())) > 0.85
    assert area(anew.predict(), anew.predict()) == (0.5, 0.5)
    # Not claimed: a column of the weights that stayed moves answers everywhere.
    assert max(area(leak.predict(), anew.predict())) < 0.8
