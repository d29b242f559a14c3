"""The inverse Hessian class by class, and its effect on slow training."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph, one_hot
from projector.network.inputs import inputs_of
from projector.network.losses import LinearMap, loss_of
from projector.network.propagation import Propagator
from projector.network.representation import Representation
from projector.network.spec import LossKind, ModelSpec
from projector.solvers.class_curvature import ClassCurvature
from projector.solvers.newton import Newton, minimise
from projector.solvers.objective import Objective, Point
from tests.support.everyday import everyday
from tests.support.models.small_graphs import dense_features, graph_of

SEPARATE = [LossKind.OVR, LossKind.HINGE]


def wide_features() -> Graph:
    rng = np.random.default_rng(0)
    return graph_of([(0, 1), (2, 3)], rng.standard_normal((12, 30)), rng.integers(0, 3, 12).tolist(), classes=3)


def hard_features() -> Graph:
    """Return nearly separable classes and columns of uneven size, badly conditioned at a small lambda."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 4, 300)
    means = rng.standard_normal((4, 60))
    features = (means[labels] + rng.standard_normal((300, 60))) * np.logspace(0, -2, 60)
    edges = [(i, i + 1) for i in range(0, 298, 3)]
    return graph_of(edges, features, labels.tolist(), classes=4)


def objective_of(graph: Graph, loss: LossKind, regularization: float) -> Objective:
    spec = ModelSpec(loss=loss, regularization=regularization)
    propagator = Propagator.build(graph.adjacency, spec.propagation, spec.self_loops)
    labels = one_hot(graph.labels, graph.train_mask, graph.num_classes)
    inputs = inputs_of(spec, FeatureMatrix(graph.features), labels, propagator)
    y = torch.from_numpy(graph.labels[graph.train_mask])
    return Objective(Representation(inputs, np.flatnonzero(graph.train_mask)), loss_of(loss), y, regularization)


def zeros(objective: Objective, graph: Graph) -> torch.Tensor:
    return torch.zeros((objective.representation.columns, graph.num_classes), dtype=torch.float64)


@pytest.mark.parametrize("make", [dense_features, wide_features])
@pytest.mark.parametrize("loss", SEPARATE)
def test_it_is_the_inverse_of_the_hessian(loss: LossKind, make: Callable[[], Graph]) -> None:
    graph = make()
    objective = objective_of(graph, loss, 1e-3)
    generator = torch.Generator().manual_seed(0)
    W = 0.3 * torch.randn(zeros(objective, graph).shape, dtype=torch.float64, generator=generator)
    point = objective.at(W)
    inverse = ClassCurvature(objective)
    right = torch.randn(W.shape, dtype=torch.float64, generator=generator)
    assert inverse(right).equal(right), "the identity until a step was long"
    inverse.adapt(point, products=0)
    assert inverse(right).equal(right)
    inverse.adapt(point, products=10**6)
    found = inverse(right)
    assert torch.allclose(objective.hessian(point)(found), right, rtol=1e-9, atol=1e-11)
    inverse.adapt(objective.at(10 * W), products=1)
    assert not inverse(right).equal(found), "and that of each point from then on"


@pytest.mark.parametrize("loss", everyday(SEPARATE, LossKind.OVR))
def test_a_small_lambda_is_trained_to_the_same_optimum_with_far_fewer_products(
    loss: LossKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = hard_features()
    objective = objective_of(graph, loss, 1e-6)
    plain = Newton(objective, objective.at(zeros(objective, graph)), 1e-10)
    while not plain.finished:
        plain.step()
    counted: list[int] = []
    hessian = Objective.hessian

    def counting(self: Objective, point: Point) -> LinearMap:
        product = hessian(self, point)

        def counted_product(direction: torch.Tensor) -> torch.Tensor:
            counted.append(1)
            return product(direction)

        return counted_product

    monkeypatch.setattr(Objective, "hessian", counting)
    found = minimise(objective, zeros(objective, graph), 1e-10, lambda iteration, point: None).point
    assert found.relative_gradient <= 1e-8
    assert len(counted) < plain.products / 3
    if plain.converged:
        assert torch.linalg.norm(found.W - plain.best.W) <= 1e-7 * torch.linalg.norm(found.W)


def test_classes_without_curvature_are_divided_by_lambda() -> None:
    """Far beyond its margins a smoothed hinge is linear: the Hessian is lambda I."""
    graph = dense_features()
    objective = objective_of(graph, LossKind.HINGE, 0.5)
    inverse = ClassCurvature(objective)
    W = 1e6 * torch.randn(
        zeros(objective, graph).shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    inverse.adapt(objective.at(W), products=10**6)
    assert torch.allclose(inverse(torch.ones_like(W)), 2 * torch.ones_like(W))
