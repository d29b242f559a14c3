"""Products with H itself against a dense recomputation in extended precision, on small graphs of every shape."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph, one_hot
from projector.network.inputs import inputs_of
from projector.network.propagation import Propagator
from projector.network.representation import DenseRepresentation, transposed_product
from projector.network.spec import Combine, ModelSpec
from tests.support.models.small_graphs import GRAPHS, dense_representation

SPEC = ModelSpec(hops=3, combine=Combine.CONCAT)


def representation_of(graph: Graph) -> DenseRepresentation:
    propagator = Propagator.build(graph.adjacency, SPEC.propagation, SPEC.self_loops)
    labels = one_hot(graph.labels, graph.train_mask, graph.num_classes)
    return DenseRepresentation(
        inputs_of(SPEC, FeatureMatrix(graph.features), labels, propagator), np.flatnonzero(graph.train_mask)
    )


def without_training_nodes() -> Graph:
    graph = GRAPHS[0]()
    graph.train_mask[:] = False
    return graph


@pytest.mark.parametrize("classes", [1, 3, 40])
@pytest.mark.parametrize("make", [*GRAPHS, without_training_nodes])
def test_products_with_h_are_those_of_a_dense_recomputation(make: Callable[[], Graph], classes: int) -> None:
    """Features without full rank, equal rows, rows of zeros, a single node and no training node are among them."""
    graph = make()
    representation = representation_of(graph)
    H = dense_representation(graph, SPEC).astype(np.longdouble)
    generator = torch.Generator().manual_seed(classes)
    W = torch.randn((representation.columns, classes), dtype=torch.float64, generator=generator)
    R = torch.randn((representation.rows, classes), dtype=torch.float64, generator=generator)
    # Weights may be the transpose of a matrix, as gradients are.
    for weights in (W, W.T.contiguous().T):
        logits = representation.logits(weights)
        assert logits.is_contiguous()
        np.testing.assert_allclose(logits, H @ W.numpy().astype(np.longdouble), rtol=1e-12, atol=1e-12)
    expected = H.T @ R.numpy().astype(np.longdouble)
    np.testing.assert_allclose(representation.transposed(R), expected, rtol=1e-12, atol=1e-12)
    single = transposed_product(torch.from_numpy(H.astype(np.float32)), R.to(torch.float32))
    np.testing.assert_allclose(single, expected, rtol=1e-4, atol=1e-4)
