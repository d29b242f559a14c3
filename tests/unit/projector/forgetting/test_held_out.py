"""How well the validation and test nodes that are left are predicted."""

import numpy as np

from projector.forgetting.held_out import HeldOut


def test_scores_are_the_accuracy_or_r_squared_of_what_is_left() -> None:
    outputs = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    classes = HeldOut(np.array([0, 2, 3]), np.array([0, 1, 1]))
    assert classes.score(outputs) == 2 / 3
    assert classes.without(np.array([2]), np.array([1])).score(outputs) == 1.0
    assert classes.without(np.array([0, 2, 3])).score(outputs) is None
    truth = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    missed = np.square(truth - outputs[[0, 2, 3]]).sum()
    spread = np.square(truth - truth.mean(axis=0)).sum()
    targets = HeldOut(np.array([0, 2, 3]), truth)
    assert np.isclose(targets.score(outputs) or 0.0, 1 - missed / spread, rtol=1e-12)
    # Of one node, or of equal targets, R^2 is undefined.
    assert targets.without(np.array([0, 2])).score(outputs) is None
