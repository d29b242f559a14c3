"""The projective residual update against retraining, projected."""

import numpy as np
import pytest

from benchmarks.baselines.linear import representation, stacked
from benchmarks.baselines.projective_residual import ProjectiveResidual, retrained_answers
from projector import ModelSpec
from projector.network.spec import LossKind
from tests.support.mathematics.baselines import small_graph

pytestmark = pytest.mark.ci

SPEC = ModelSpec(loss=LossKind.SQUARED, regularization=1e-2)


def test_it_is_the_difference_to_retraining_projected_on_the_deleted_rows() -> None:
    graph = small_graph(features=7)
    training = np.flatnonzero(graph.train_mask)
    H, y = representation(graph, SPEC, training), np.eye(3)[graph.labels[training]]
    ridge = 1e-2 * training.size
    fitted = ProjectiveResidual(SPEC).fit(graph)

    def solved(kept: np.ndarray) -> np.ndarray:
        return np.linalg.solve(H[kept].T @ H[kept] + ridge * np.eye(7), H[kept].T @ y[kept])

    everyone = np.ones(training.size, dtype=np.bool_)
    np.testing.assert_allclose(stacked(fitted.weights), solved(everyone), atol=1e-12)
    gone = np.zeros(training.size, dtype=np.bool_)
    gone[[1, 4, 5]] = True
    retrained = solved(~gone)
    np.testing.assert_allclose(retrained_answers(fitted.hat, y, gone), H[gone] @ retrained, atol=1e-12)
    onto = np.linalg.pinv(H[gone]) @ H[gone]
    expected = solved(everyone) + onto @ (retrained - solved(everyone))
    left = fitted.unlearn(training[gone])
    np.testing.assert_allclose(stacked(left.weights), expected, atol=1e-12)
    assert np.linalg.norm(expected - retrained) > 1e-3
    # As many rows as features span everything: the update is retraining.
    gone[[0, 2, 3, 7, 8]] = True
    np.testing.assert_allclose(stacked(fitted.unlearn(training[gone]).weights), solved(~gone), atol=1e-9)


def test_a_node_outside_training_changes_no_weight() -> None:
    graph = small_graph()
    fitted = ProjectiveResidual(SPEC).fit(graph)
    left = fitted.unlearn(np.flatnonzero(graph.test_mask)[:1])
    np.testing.assert_array_equal(left.weights, fitted.weights)
