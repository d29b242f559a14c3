"""GIF, IDEA, MEGU and GNNDelete against their papers' formulas, evaluated densely."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.baselines.catalogue import FIELD
from benchmarks.baselines.field.differentiable import Backbone, Forgetting, Method, Model, flat
from benchmarks.baselines.field.gif import InfluenceFunction, bound, certified_noise, influence
from benchmarks.baselines.field.gnndelete import Deleted, GnnDelete, Problem, deleted_edges, strange_pairs
from benchmarks.baselines.field.megu import Megu, Smoothed, influenced_nodes, objective, threshold
from benchmarks.baselines.linear import remaining, within_hops
from benchmarks.baselines.protocol import BaselineError
from benchmarks.baselines.retraining import Retraining
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.spec import Combine, LossKind
from tests.support.mathematics.baselines import dense_propagation, small_graph

pytestmark = pytest.mark.ci

SOFTMAX = ModelSpec(loss=LossKind.SOFTMAX, regularization=1e-2)
OVR = replace(SOFTMAX, loss=LossKind.OVR)
LINEAR, GCN = Backbone(SOFTMAX), Backbone(SOFTMAX, 0)
BACKBONES = pytest.mark.parametrize("backbone", [LINEAR, Backbone(OVR), GCN], ids=["softmax", "ovr", "gcn"])


def deleted_from(graph: Graph) -> NDArray[np.int64]:
    return np.flatnonzero(graph.train_mask)[:2]


def fitted(backbone: Backbone, method: Method, graph: Graph) -> Model:
    return Forgetting(backbone, method).fit(graph)


def dense_logits(backbone: Backbone, graph: Graph, parameters: tuple[Tensor, ...]) -> Tensor:
    """Return the logits by the definition, from dense matrices."""
    P, X = torch.from_numpy(dense_propagation(graph)), torch.from_numpy(np.asarray(graph.features, dtype=np.float64))
    if backbone.seed is None:
        return P @ P @ X @ parameters[0]
    return P @ torch.relu(P @ X @ parameters[0] + parameters[1]) @ parameters[2] + parameters[3]


def dense_losses(backbone: Backbone, graph: Graph, nodes: NDArray[np.int64]) -> Callable[[Tensor], Tensor]:
    """Return the sum of the losses of `nodes`, as a function of all parameters in one vector."""
    shapes = [each.shape for each in backbone.trained(small_graph())]

    def losses(vector: Tensor) -> Tensor:
        pieces = torch.split(vector, [math.prod(shape) for shape in shapes])
        z = dense_logits(backbone, graph, tuple(p.reshape(s) for p, s in zip(pieces, shapes, strict=True)))[nodes]
        y = torch.nn.functional.one_hot(torch.from_numpy(graph.labels[nodes]), z.shape[1])
        if backbone.seed is None and backbone.spec.loss is LossKind.OVR:
            return torch.log1p(torch.exp(-(2 * y - 1) * z)).sum()
        return -(y * torch.log_softmax(z, dim=1)).sum()

    return losses


@BACKBONES
def test_gif_is_the_series_of_the_hessian_and_of_deleted_and_influenced_nodes_alone(backbone: Backbone) -> None:
    graph = small_graph()
    nodes, training = deleted_from(graph), np.flatnonzero(graph.train_mask)
    left = remaining(graph, nodes)
    model = fitted(backbone, InfluenceFunction(), graph)
    influenced = np.setdiff1d(training[within_hops(graph, nodes, backbone.hops + 1)[training]], nodes)
    assert influenced.size
    at = torch.from_numpy(flat(model.parameters))

    def slope(graph: Graph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(torch.func.grad(dense_losses(backbone, graph, rows))(at).numpy())

    v = slope(graph, np.union1d(nodes, influenced)) - slope(left, influenced)
    H = torch.func.hessian(dense_losses(backbone, graph, training))(at).numpy()
    H = H + backbone.decay * training.size * np.eye(len(H))
    scale, u = 500.0, v
    assert np.abs(np.linalg.eigvalsh(H)).max() < scale
    for _ in range(7):
        u = v + u - H @ u / scale
    np.testing.assert_allclose(flat(influence(model, left, scale, 7)), u / scale, atol=1e-12)
    if backbone.seed is None:
        # A least scale of 0 is raised to the largest eigenvalue, at which the series converges.
        np.testing.assert_allclose(flat(influence(model, left, 0.0, 5_000)), np.linalg.solve(H, v), atol=1e-8)


def test_gif_moves_the_weights_to_retraining_and_idea_adds_its_noise() -> None:
    graph = small_graph(nodes=60)
    nodes = deleted_from(graph)
    model = fitted(LINEAR, InfluenceFunction(least_scale=0.0, steps=1_000), graph)
    left = model.unlearn(nodes)
    retrained = Retraining(SOFTMAX).fit(graph).unlearn(nodes)
    away = [np.linalg.norm(flat(each.parameters) - retrained.weights.ravel()) for each in (model, left)]
    assert away[1] < 0.5 * away[0]
    noisy = fitted(LINEAR, InfluenceFunction(least_scale=0.0, steps=1_000, noise=0.1, seed=1), graph).unlearn(nodes)
    noise = flat(noisy.parameters) - flat(left.parameters)
    assert 0.05 < noise.std() < 0.2


def test_idea_certifies_by_its_proposition_3_and_theorem_3() -> None:
    found = bound(0.3, 100, 5, 20, lipschitz=0.25, convexity=1.0, loss=0.5)
    assert found == pytest.approx((1.0 * 100 * 0.3 + 1.25 + math.sqrt(4 * 100 * 0.5 * 20 + 1.25**2)) / 100)
    assert certified_noise(2.0, 1.0, 1e-4) == pytest.approx(2.0 * math.sqrt(2 * math.log(12_500)))


def test_megu_descends_on_its_objective() -> None:
    graph = small_graph()
    nodes = deleted_from(graph)
    random = np.random.default_rng(0)
    z, q = random.normal(size=(2, graph.nodes, 3))
    y, influenced = z.argmax(axis=1), np.array([3, 7, 9])

    def soft(logits: NDArray[np.float64]) -> NDArray[np.float64]:
        raised = np.exp(logits / 1.5)
        return np.asarray(raised / raised.sum(axis=1, keepdims=True))

    def divergence(fixed: NDArray[np.float64], moving: NDArray[np.float64]) -> float:
        return float((soft(fixed) * np.log(soft(fixed) / soft(moving))).sum(axis=1).mean())

    def log_loss(logits: NDArray[np.float64], rows: NDArray[np.int64]) -> float:
        raised = np.exp(logits[rows])
        return float(-np.log(raised[np.arange(rows.size), y[rows]] / raised.sum(axis=1)).mean())

    forgotten = divergence(q[nodes], z[nodes]) - log_loss(q, nodes)
    kept = divergence(z[influenced], q[influenced]) + log_loss(z, influenced)
    tensors = [torch.from_numpy(each) for each in (z, q, y, nodes, influenced)]
    assert objective(*tensors).item() == pytest.approx(0.01 * forgotten + kept)
    # One step against the gradient of the objective, by differences.
    model = fitted(LINEAR, Megu(seed=3, rate=1e-3, steps=1), graph)
    left = remaining(graph, nodes)
    P = dense_propagation(left)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        through = torch.nn.Linear(3, 3, dtype=torch.float64)
    classes = torch.from_numpy(model.logits_on(graph).argmax(axis=1))
    chosen = torch.from_numpy(influenced_nodes(model, nodes))
    before, after = model.parameters[0], model.unlearn(nodes).parameters[0]
    held = [torch.from_numpy(P @ P @ graph.features) @ before]
    held.append(through(held[0]).detach())

    def moved(W: Tensor) -> Tensor:
        """The objective with the first arguments of its divergences held where they were."""
        z = torch.from_numpy(P @ P @ graph.features) @ W
        q = through(z)
        forget = objective(z, held[1], classes, torch.from_numpy(nodes), chosen[:0]) / 0.01
        forget = forget + (
            torch.nn.functional.cross_entropy(held[1][nodes], classes[nodes])
            - torch.nn.functional.cross_entropy(q[nodes], classes[nodes])
        )
        T = 1.5
        keep = torch.nn.functional.kl_div(
            torch.log_softmax(q[chosen] / T, 1), torch.softmax(held[0][chosen] / T, 1), reduction="batchmean"
        )
        return 0.01 * forget + keep + torch.nn.functional.cross_entropy(z[chosen], classes[chosen])

    slope, step = np.zeros_like(before.numpy()), 1e-6
    with torch.no_grad():
        for place in np.ndindex(slope.shape):
            moves = torch.zeros_like(before)
            moves[place] = step
            slope[place] = (moved(before + moves) - moved(before - moves)).item() / (2 * step)
    np.testing.assert_allclose(after.numpy(), before.numpy() - 1e-3 * slope, atol=1e-9)


def test_megu_takes_nodes_in_reach_whose_propagated_features_change() -> None:
    graph = small_graph(nodes=60)
    nodes = deleted_from(graph)
    P, flipped = dense_propagation(graph), np.array(graph.features)
    flipped[nodes] = 1 - flipped[nodes]
    one, other = P @ P @ graph.features, P @ P @ flipped
    alike = (one * other).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    around = np.setdiff1d(np.flatnonzero(within_hops(graph, nodes, 2)), nodes)
    expected = around[alike[around] <= threshold(alike)]
    np.testing.assert_array_equal(influenced_nodes(fitted(LINEAR, Megu(), graph), nodes), expected)
    assert threshold(np.array([0.05, 0.15, 0.9])) == pytest.approx(0.3)
    assert threshold(np.array([0.92, 0.97])) == pytest.approx(1.1)


def test_megu_corrects_and_smooths_by_the_classes_it_gave_before() -> None:
    graph = small_graph()
    nodes = deleted_from(graph)
    model = fitted(LINEAR, Megu(steps=3), graph)
    left = model.unlearn(nodes)
    assert isinstance(left, Smoothed)
    A = left.graph.adjacency.toarray()
    degrees = A.sum(axis=1)
    inverse = np.divide(1, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)
    S, mask = inverse[:, None] * A * inverse, left.graph.train_mask
    given = np.eye(3)[model.logits_on(graph).argmax(axis=1)][mask]
    answers = left.predict_on(left.graph)
    error = np.zeros_like(answers)
    error[mask] = given - answers[mask]
    found = error
    for _ in range(80):
        found = 0.8 * S @ found + 0.2 * error
        found[mask] = error[mask]
    start = answers + found
    start[mask] = given
    found = start
    for _ in range(80):
        found = np.clip(0.5 * S @ found + 0.5 * start, 0, 1)
    np.testing.assert_allclose(left.predict()[left.live], found[left.live], atol=1e-6)
    # A second deletion keeps the classes from before the first.
    again = left.unlearn(np.flatnonzero(left.graph.train_mask)[:1])
    assert isinstance(again, Smoothed)
    np.testing.assert_array_equal(again.classes, left.classes)


@pytest.mark.parametrize("backbone", [LINEAR, GCN], ids=["linear", "gcn"])
def test_gnndelete_learns_matrices_for_the_rows_in_reach(backbone: Backbone) -> None:
    ring = np.roll(np.eye(40), 1, axis=1)
    graph = replace(small_graph(nodes=40), adjacency=sp.csr_array(ring + ring.T))
    nodes = deleted_from(graph)[:1]
    method = GnnDelete(steps=400, rate=1e-2)
    model = fitted(backbone, method, graph)
    left, after = model.unlearn(nodes), remaining(graph, nodes)
    assert isinstance(left, Deleted)
    assert all(a is b for a, b in zip(left.parameters, model.parameters, strict=True))
    D, touched = left.operators.matrices, np.unique(deleted_edges(graph, nodes))
    X, P = torch.from_numpy(np.asarray(after.features)), torch.from_numpy(dense_propagation(after))
    near = [torch.from_numpy(within_hops(graph, touched, hops)) for hops in (1, 2)]
    assert not near[1].all()
    if backbone.seed is None:
        z = P @ P @ X @ model.parameters[0]
    else:
        inner = P @ X @ model.parameters[0] + model.parameters[1]
        inner[near[0]] = inner[near[0]] @ D[0]
        z = P @ torch.relu(inner) @ model.parameters[2] + model.parameters[3]
    z[near[1]] = z[near[1]] @ D[-1]
    np.testing.assert_allclose(left.logits_on(after), z.numpy(), atol=1e-10)
    # Its losses by their formulas: the first matrices, and the learned ones, which are better at both layers.
    problem = Problem.of(model, nodes, after, 0)
    first = replace(left.operators, matrices=tuple(torch.full_like(each, 1e-3) for each in D))
    masks = tuple(mask[problem.near] for mask in left.operators.masks)
    losses = []
    for operators in (first, left.operators):
        rows = replace(operators, masks=masks).layers(problem.inner, model.parameters, problem.P)
        losses.append([problem.loss(layer, each).item() for layer, each in enumerate(rows)])
    assert (np.array(losses[1]) < np.array(losses[0])).all()
    ends = deleted_edges(graph, nodes).ravel()
    strangers = strange_pairs(graph, ends.size // 2, np.random.default_rng(0)).ravel()
    one = dense_propagation(after)
    before = (
        torch.from_numpy((one @ one if backbone.seed is None else one) @ np.asarray(graph.features))
        @ model.parameters[0]
    )
    before = before if backbone.seed is None else before + model.parameters[1]
    near_first = near[-1] if backbone.seed is None else near[0]
    others = np.setdiff1d(np.flatnonzero(near_first), touched)
    full = torch.zeros((graph.nodes, before.shape[1]), dtype=torch.float64)
    full[problem.near] = replace(left.operators, masks=masks).behind(0, problem.inner)
    expected = ((full[ends] - before[strangers]) ** 2).mean() + ((full[others] - before[others]) ** 2).mean()
    assert losses[1][0] == pytest.approx(expected.item() / 2)


def test_gnndelete_has_nothing_to_learn_from_a_node_without_edges() -> None:
    graph = small_graph()
    alone = remaining(graph, np.array([4]))
    model = fitted(LINEAR, GnnDelete(), alone)
    assert flat(model.unlearn(np.array([4])).parameters) == pytest.approx(flat(model.parameters))
    pairs = strange_pairs(graph, 50, np.random.default_rng(0))
    assert pairs.shape == (2, 50)
    assert not graph.adjacency.toarray()[pairs[0], pairs[1]].any()


@pytest.mark.parametrize("name", FIELD)
def test_every_method_changes_the_answers_of_what_remains(name: str) -> None:
    graph = small_graph()
    nodes = deleted_from(graph)
    model = FIELD[name](SOFTMAX, 0).fit(graph)
    assert isinstance(model, Model)
    if isinstance(model.method, GnnDelete):
        model = replace(model, method=replace(model.method, steps=20))
    left, after = model.unlearn(nodes), remaining(graph, nodes)
    assert (left.predict()[nodes] == 0).all()
    assert np.abs(left.logits_on(after) - model.logits_on(after)).max() > 1e-4
    assert (left.weights is None) == name.endswith("gcn")
    np.testing.assert_array_equal(model.unlearn(nodes).predict(), left.predict())


def test_other_linear_models_are_refused() -> None:
    with pytest.raises(BaselineError, match="one block"):
        fitted(Backbone(replace(SOFTMAX, combine=Combine.CONCAT)), Megu(), small_graph())
