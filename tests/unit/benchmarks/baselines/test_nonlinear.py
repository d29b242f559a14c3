"""The networks against the formulas of their papers, evaluated densely with their own weights."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.baselines.nonlinear import Kind, Layers, Network, tensors
from benchmarks.baselines.protocol import accuracy
from tests.support.mathematics.baselines import dense_propagation, small_graph

pytestmark = pytest.mark.ci

Matrix = NDArray[np.float64]


def array(tensor: torch.Tensor) -> Matrix:
    return tensor.detach().numpy().astype(np.float64)


def relu(x: Matrix) -> Matrix:
    return np.maximum(x, 0.0)


def gcn(layers: Layers, X: Matrix, P: Matrix, A: Matrix) -> Matrix:
    def layer(module: Any, x: Matrix) -> Matrix:
        return P @ x @ array(module.lin.weight).T + array(module.bias)

    return layer(layers.second, relu(layer(layers.first, X)))


def sage(layers: Layers, X: Matrix, P: Matrix, A: Matrix) -> Matrix:
    mean = A / np.maximum(A.sum(axis=1, keepdims=True), 1.0)

    def layer(module: Any, x: Matrix) -> Matrix:
        return mean @ x @ array(module.lin_l.weight).T + array(module.lin_l.bias) + x @ array(module.lin_r.weight).T

    return layer(layers.second, relu(layer(layers.first, X)))


def gat(layers: Layers, X: Matrix, P: Matrix, A: Matrix) -> Matrix:
    around = A + np.eye(len(A)) > 0

    def layer(module: Any, x: Matrix) -> Matrix:
        heads, width = module.heads, module.out_channels
        Wx = (x @ array(module.lin.weight).T).reshape(-1, heads, width)
        outputs = []
        for h in range(heads):
            source, target = (array(each)[0, h] for each in (module.att_src, module.att_dst))
            raw = (Wx[:, h] @ target)[:, None] + (Wx[:, h] @ source)[None, :]
            raised = np.where(around, np.exp(np.where(raw > 0, raw, 0.2 * raw)), 0.0)
            outputs.append(raised / raised.sum(axis=1, keepdims=True) @ Wx[:, h])
        return np.concatenate(outputs, axis=1) + array(module.bias)

    hidden = layer(layers.first, X)
    return layer(layers.second, np.where(hidden > 0, hidden, np.expm1(hidden)))


def appnp(layers: Layers, X: Matrix, P: Matrix, A: Matrix) -> Matrix:
    H = relu(X @ array(layers.first.weight).T + array(layers.first.bias))
    H = H @ array(layers.second.weight).T + array(layers.second.bias)
    Z = H
    for _ in range(10):
        Z = 0.9 * P @ Z + 0.1 * H
    return Z


@pytest.mark.parametrize(
    ("kind", "formula"), [(Kind.GCN, gcn), (Kind.SAGE, sage), (Kind.GAT, gat), (Kind.APPNP, appnp)]
)
def test_a_network_computes_the_formula_of_its_paper(kind: Kind, formula: object) -> None:
    graph = small_graph()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = Layers(kind, graph.num_features, graph.num_classes).eval()
        for parameter in layers.parameters():
            nn.init.normal_(parameter)
    assert callable(formula)
    expected = formula(layers, np.asarray(graph.features), dense_propagation(graph), graph.adjacency.toarray())
    x, neighbours = tensors(graph, kind)
    for each in (x, x.to_sparse()):
        found = array(layers(each, neighbours))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("kind", Kind)
def test_training_learns_is_repeatable_and_leaves_no_trace_of_the_deleted(kind: Kind) -> None:
    graph = small_graph(nodes=40, features=6)
    nodes = np.flatnonzero(graph.train_mask)[:3]
    network = Network(kind, seed=1, epochs=60)
    fitted = network.fit(graph)
    assert accuracy(fitted.predict(), graph, graph.train_mask) > 0.5
    left = fitted.unlearn(nodes)
    # Equal to a graph on which the deleted nodes had other features, labels and edges.
    X, y = np.array(graph.features), graph.labels.copy()
    X[nodes], y[nodes] = 50.0, (y[nodes] + 1) % 3
    other = network.fit(replace(graph, features=X, labels=y)).unlearn(nodes)
    np.testing.assert_array_equal(left.predict(), other.predict())
    assert not left.predict()[nodes].any()
    assert left.weights is None
