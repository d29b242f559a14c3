"""Deleted edges: the scores by hand, and what they find."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from benchmarks.attacks.black_box import recorded
from benchmarks.attacks.edges import by_change, by_similarity, by_trend
from benchmarks.attacks.ranking import auc
from benchmarks.baselines.linear import fitted, train_linear
from benchmarks.baselines.protocol import Nodes
from benchmarks.paper.inference.edges import drawn_pairs, edges
from benchmarks.paper.inference.versions import AUDITED, SEEN, leaking
from benchmarks.paper.units import Unit, graph_of
from projector.network.spec import LossKind
from tests.support.mathematics.attacks import SPECS, attacked

Matrix = NDArray[np.float64]


def sure(*confidence: float) -> Matrix:
    return np.stack([confidence, 1 - np.array(confidence)], axis=1)


def test_the_scores_by_hand_on_a_path_of_four_nodes_of_which_one_has_no_edge_left() -> None:
    adjacency = sp.csr_array(np.array([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]], dtype=float))
    before, after = recorded(sure(0.9, 0.8, 0.7, 0.9)), recorded(sure(0.9, 0.6, 0.8, 0.5))
    pairs = np.array([[0, 1], [1, 2], [2, 3]])
    np.testing.assert_allclose(by_change(before, after, pairs), [0, 0.1, 0.1])
    # Against their neighbours: 0.6 - 0.9, 0.85 - 0.6, 0.6 - 0.8, and none of the last.
    np.testing.assert_allclose(by_trend(after, adjacency, pairs), [-0.3 + 0.25, 0.25 - 0.2, -0.2])
    length = np.hypot
    cosines = [(0.9 * 0.6 + 0.1 * 0.4) / length(0.9, 0.1) / length(0.6, 0.4)]
    cosines += [(0.6 * 0.8 + 0.4 * 0.2) / length(0.6, 0.4) / length(0.8, 0.2)]
    cosines += [(0.8 * 0.5 + 0.2 * 0.5) / length(0.8, 0.2) / length(0.5, 0.5)]
    np.testing.assert_allclose(by_similarity(after, pairs), cosines)


def test_a_node_that_is_not_there_is_like_nobody_and_only_ends_and_neighbours_are_asked_about() -> None:
    adjacency = sp.csr_array(np.diag(np.ones(3), 1) + np.diag(np.ones(3), -1))
    answers = sure(0.9, 0.6, 0.8, 0.5)
    answers[1] = 0.0
    assert by_similarity(recorded(answers), np.array([[0, 1]])) == [0]

    def asked(nodes: Nodes) -> Matrix:
        assert set(nodes) <= {0, 1, 2}
        return answers[nodes]

    assert by_trend(asked, adjacency, np.array([[0, 1]])) == pytest.approx(-0.9 + (0.9 + 0.8) / 2)


def test_pairs_are_edges_and_pairs_that_are_none() -> None:
    graph, _ = attacked(SPECS[LossKind.OVR])
    A = graph.adjacency.toarray()
    deleted, kept, never = drawn_pairs(graph, 0)
    assert len(deleted) == len(kept) == len(never) == round(0.01 * graph.edges)
    assert A[tuple(deleted.T)].all()
    assert A[tuple(kept.T)].all()
    assert not A[tuple(never.T)].any()
    assert len({tuple(pair) for pair in np.concatenate([deleted, kept, never]).tolist()}) == 3 * len(deleted)
    assert (np.concatenate([deleted, kept, never])[:, 0] < np.concatenate([deleted, kept, never])[:, 1]).all()


@pytest.mark.parametrize("loss", list(SPECS))
def test_deleted_edges_are_found_as_are_answers_that_still_use_them_and_weights_that_leak_are_not(
    loss: LossKind,
) -> None:
    # So large a lambda that weights hardly move.
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
    # A service that forgot the edges in training and answers as if they were there.
    assert min(area(anew.predict_on(graph), anew.predict())) > 0.85
    assert area(anew.predict(), anew.predict()) == (0.5, 0.5)
    # Not claimed: a column of the weights that stayed moves answers everywhere.
    assert max(area(leak.predict(), anew.predict())) < 0.8


def test_the_experiment_is_the_same_for_all_methods_and_a_repaired_model_is_that_of_training_anew() -> None:
    found = {}
    for method in ("retraining", "lethe, projection", "lethe, projection and repair"):
        unit = Unit("edges", "synthetic:n=60,d=12,classes=3,seed=1", method, 0)
        found[method] = dict(edges(graph_of(unit), unit))
    anew, repaired = found["retraining"], found["lethe, projection and repair"]
    assert repaired[SEEN] == pytest.approx(anew[SEEN])
    audited = [value for name, value in anew[AUDITED].items() if name.startswith("change")]
    assert audited == [0.5] * 8
    assert repaired[AUDITED]["change_3_kept"] == repaired[AUDITED]["change_3_never"] == 0.5
    # Weights that stay as they were: the auditor sees that some went, and in which answers.
    assert found["lethe, projection"][AUDITED]["change_exact_kept"] != 0.5
