"""The Newton step and its noise against their formulas, evaluated densely."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.baselines.linear import remaining, representation, stacked
from benchmarks.baselines.newton.fisher import Fisher
from benchmarks.baselines.newton.influence import Affected, Influence
from projector.network.spec import Combine
from tests.support.mathematics.baselines import OVR, dense_propagation, signs, small_graph, sum_gradient, sum_hessian

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_the_step_is_newtons_on_what_remains_and_the_noise_has_the_hessians_shape(noise: float) -> None:
    graph, lam = small_graph(), OVR.regularization
    nodes = np.flatnonzero(graph.train_mask)[:2]
    left = remaining(graph, nodes)
    kept = np.flatnonzero(left.train_mask)
    P = dense_propagation(left)
    H = (P @ P @ left.features)[kept]
    fitted = Fisher(OVR, noise=noise, seed=7).fit(graph)
    W, found = stacked(fitted.weights), stacked(fitted.unlearn(nodes).weights)
    b = noise * np.random.default_rng((7, 0)).normal(size=W.shape)
    for c in range(graph.num_classes):
        s = signs(graph, kept)[:, c]
        gradient, hessian = (f(H, s, W[:, c], lam) / kept.size for f in (sum_gradient, sum_hessian))
        values, vectors = np.linalg.eigh(hessian)
        shaped = vectors @ (values**-0.25 * (vectors.T @ b[:, c]))
        np.testing.assert_allclose(found[:, c], W[:, c] - np.linalg.solve(hessian, gradient) + shaped, atol=1e-10)


@pytest.mark.parametrize("combine", list(Combine))
def test_without_noise_it_is_influence_with_replaced_rows(combine: Combine) -> None:
    graph, spec = small_graph(features=12), replace(OVR, combine=combine)
    nodes = np.flatnonzero(graph.train_mask)[:2]
    training = np.flatnonzero(graph.train_mask)
    # Both sides of the Hessian: as many columns as rows need, and more.
    assert (representation(graph, spec, training).shape[1] > training.size) == (combine is Combine.CONCAT)
    fisher = Fisher(spec).fit(graph).unlearn(nodes)
    influence = Influence(spec, Affected.REPLACED).fit(graph).unlearn(nodes)
    np.testing.assert_allclose(fisher.weights, influence.weights, atol=1e-8)
