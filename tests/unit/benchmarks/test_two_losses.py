"""The comparison of the authors' Figure 3: most of the distance is that between two losses."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import approx_fprime
from scipy.special import log_softmax

from benchmarks.paper.forgetting.two_losses import METHOD, PAIRS, against_rest, cross_entropy, descended, two_losses
from benchmarks.paper.units import Unit
from tests.support.mathematics.baselines import small_graph

pytestmark = pytest.mark.ci


def test_the_slopes_are_those_of_the_losses() -> None:
    logits, hot = np.array([0.3, -1.2, 0.7]), np.array([0.0, 1.0, 0.0])
    signs = 2 * hot - 1
    for slopes, loss in (
        (against_rest, lambda z: float(np.log1p(np.exp(-signs * z)).sum())),
        (cross_entropy, lambda z: float(-log_softmax(z)[1])),
    ):
        np.testing.assert_allclose(slopes(logits[None], hot[None])[0], approx_fprime(logits, loss), atol=1e-6)


def test_descent_takes_its_steps_with_momentum() -> None:
    X, hot = sp.csr_array(np.eye(2)), np.eye(2)
    W, taken = descended(X, hot, cross_entropy, 0.5, lambda W: 0.0, steps=2)
    first = -(cross_entropy(np.zeros((2, 2)), hot) / 2)
    velocity = -0.9 * first + cross_entropy(first, hot) / 2 + 0.5 * first
    np.testing.assert_allclose(W, first - velocity)
    assert taken == 2


def test_a_baseline_that_deletes_nothing_is_far_from_a_retraining_by_another_loss() -> None:
    unit = Unit("two-losses", "synthetic:n=60,d=8,classes=3,seed=1", METHOD, 0)
    found = dict(two_losses(small_graph(nodes=60, features=8), unit))
    assert found.keys() == PAIRS.keys()
    assert all(figures["weights"] is not None for figures in found.values())
    assert (found["nothing deleted, to cross-entropy"]["weights"] or 0.0) > 0.1
