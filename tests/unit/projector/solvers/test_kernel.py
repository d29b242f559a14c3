"""The kernel of the training rows, computed in bands up to the diagonal, and the solutions it gives."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph, one_hot
from projector.network.inputs import inputs_of
from projector.network.losses import loss_of
from projector.network.propagation import Propagator
from projector.network.representation import Representation
from projector.network.spec import Combine, LossKind, ModelSpec
from projector.solvers import kernel
from projector.solvers.kernel import KernelObjective, kernel_of
from projector.solvers.objective import Objective
from tests.support.models.small_graphs import graph_of

_NODES, _LAMBDA = 40, 1e-3


def wide_graph(kind: str) -> Graph:
    """Return 40 nodes in 5 classes with 90 features: random, of rank 3, in pairs, with zero rows, or sparse."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((_NODES, 90))
    match kind:
        case "rank-deficient":
            X = X[:, :3] @ rng.standard_normal((3, 90))
        case "duplicated":
            X[1::2] = X[::2]
        case "zero rows":
            X[::3] = 0.0
        case "sparse":
            X = sp.csr_array(X * (rng.random(X.shape) < 0.1))
    edges = [(i, (7 * i + 3) % _NODES) for i in range(0, _NODES, 2)]
    return graph_of(edges, X, (np.arange(_NODES) % 5).tolist(), classes=5)


def objective_of(graph: Graph, rows: int) -> Objective:
    """Return the squared loss of the first `rows` nodes, with H = [X, PX, P^2 X]."""
    spec = ModelSpec(loss=LossKind.SQUARED, combine=Combine.CONCAT, regularization=_LAMBDA)
    propagator = Propagator.build(graph.adjacency, spec.propagation, spec.self_loops)
    labels = one_hot(graph.labels, graph.train_mask, graph.num_classes)
    inputs = inputs_of(spec, FeatureMatrix(graph.features), labels, propagator)
    y = torch.from_numpy(graph.labels[:rows])
    return Objective(Representation(inputs, np.arange(rows)), loss_of(spec.loss), y, _LAMBDA)


@pytest.mark.parametrize("kind", ["random", "rank-deficient", "duplicated", "zero rows", "sparse"])
@pytest.mark.parametrize(("rows", "band"), [(40, 7), (40, 8), (40, 1), (40, 40), (40, 1_024), (1, 7), (8, 7)])
def test_it_is_h_times_its_transpose_however_the_bands_fall(
    monkeypatch: pytest.MonkeyPatch, kind: str, rows: int, band: int
) -> None:
    monkeypatch.setattr(kernel, "_BAND", band)
    objective = objective_of(wide_graph(kind), rows)
    H = objective.representation.dense()
    expected = H @ H.T
    K = kernel_of(objective.representation)
    assert torch.allclose(K, expected, rtol=0.0, atol=1e-13 * float(expected.abs().max()))
    by_kernel = KernelObjective(objective.representation, objective.loss, objective.labels, _LAMBDA, K, np.arange(rows))
    right = torch.ones((H.shape[1], 5), dtype=torch.float64)
    hessian = H.T @ H / rows + _LAMBDA * torch.eye(H.shape[1], dtype=torch.float64)
    found = by_kernel.solve(by_kernel.factor(), right)
    assert torch.linalg.norm(hessian @ found - right) <= 1e-8 * torch.linalg.norm(right)
