"""GraphSAINT's sums over drawn nodes average to those of the whole graph, over every possible draw."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.baselines.nonlinear import Kind, Layers, tensors
from benchmarks.baselines.protocol import accuracy
from benchmarks.baselines.saint import NodeSampler, SampledNetwork, on_sample, sample_of
from tests.support.mathematics.baselines import dense_propagation, small_graph

pytestmark = pytest.mark.ci


@pytest.mark.parametrize(("nodes", "draws"), [(5, 2), (4, 4), (6, 3)])
def test_the_normalised_sums_are_unbiased_over_every_draw(nodes: int, draws: int) -> None:
    graph = small_graph(seed=3, nodes=nodes)
    sampler, P = NodeSampler.of(graph, draws), dense_propagation(graph)
    expected = (P**2).sum(axis=0) / (P**2).sum()
    np.testing.assert_allclose(sampler.probabilities, expected, rtol=1e-14)
    M, X = sampler.aggregator.toarray(), np.asarray(graph.features)
    drawn, sums, total = np.zeros(nodes), np.zeros_like(X), 0.0
    for each in product(range(nodes), repeat=draws):
        chance, inside = expected[list(each)].prod(), np.isin(np.arange(nodes), each)
        total += chance
        drawn += chance * inside
        sums += chance * inside[:, None] * ((M * inside) @ X)
    assert total == pytest.approx(1)
    # L_v / (m p_v) for each drawn v averages to L_v / m; the aggregator does so given that v is drawn.
    np.testing.assert_allclose(drawn / sampler.included, 1, rtol=1e-12)
    np.testing.assert_allclose(sums / drawn[:, None], P @ X, rtol=1e-11)


def test_a_sample_of_everyone_gives_the_networks_own_logits() -> None:
    graph = small_graph()
    # So many draws that no node is missed: p = alpha = 1.
    sampler = NodeSampler.of(graph, 100_000)
    np.testing.assert_array_equal(sampler.draw(np.random.default_rng(0)), np.arange(graph.nodes))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = Layers(Kind.GCN, graph.num_features, graph.num_classes).eval()
        for parameter in layers.parameters():
            nn.init.normal_(parameter)
    x, P = tensors(graph, Kind.GCN)
    for each in (x, x.to_sparse()):
        found = on_sample(layers, each, sample_of(sampler, np.arange(graph.nodes)))
        torch.testing.assert_close(found, layers(x, P), rtol=1e-4, atol=1e-4)


def test_training_learns_is_repeatable_and_leaves_no_trace_of_the_deleted() -> None:
    graph = small_graph(nodes=40, features=6)
    nodes = np.flatnonzero(graph.train_mask)[:3]
    network = SampledNetwork(Kind.GCN, seed=1, epochs=60)
    fitted = network.fit(graph)
    assert accuracy(fitted.predict(), graph, graph.train_mask) > 0.5
    X, y = np.array(graph.features), graph.labels.copy()
    X[nodes], y[nodes] = 50.0, (y[nodes] + 1) % 3
    left, other = fitted.unlearn(nodes), network.fit(replace(graph, features=X, labels=y)).unlearn(nodes)
    np.testing.assert_array_equal(left.predict(), other.predict())
    assert not left.predict()[nodes].any()
