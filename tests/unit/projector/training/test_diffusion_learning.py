"""Learning the sigmas: the gradient through the diffusion, the end of the path, and unusable inputs."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from projector.errors import TrainingError
from projector.graph.external_ids import NodeIds
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph, one_hot
from projector.network.blocks import side_by_side
from projector.network.diffusion import Diffusion, DiffusionHops
from projector.network.inputs import Input, Inputs
from projector.network.losses import loss_of
from projector.network.representation import Representation
from projector.network.spec import Combine, LossKind, ModelSpec, SolverKind
from projector.solvers.newton import minimise
from projector.solvers.objective import Objective
from projector.training.diffusion_gradient import objective_derivatives
from projector.training.diffusion_learning import START
from projector.training.fit import Trained, train
from tests.support.everyday import every_pair
from tests.support.models.small_graphs import with_weights

CLASSES = 3


def clustered(nodes: int, seed: int, *, noisy_edges: float = 0.2, validation: float = 0.3) -> Graph:
    """Return nodes whose features hint at their class, joined mostly to others of their class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, nodes)
    features = np.eye(CLASSES)[labels] @ rng.standard_normal((CLASSES, 8)) + rng.standard_normal((nodes, 8))
    same = labels[:, None] == labels[None, :]
    upper = np.triu(rng.random((nodes, nodes)) < np.where(same, 6.0, 6.0 * noisy_edges) / nodes, 1)
    return split_graph(upper, features, labels, rng, validation)


def split_graph(
    upper: np.ndarray, features: np.ndarray, labels: np.ndarray, rng: np.random.Generator, validation: float
) -> Graph:
    drawn = rng.random(len(labels))
    return Graph(
        adjacency=sp.csr_array((upper | upper.T).astype(np.float64)),
        features=features,
        labels=labels.astype(np.int64),
        train_mask=drawn < 0.4,
        val_mask=(drawn >= 0.4) & (drawn < 0.4 + validation),
        test_mask=drawn >= 0.4 + validation,
        node_ids=NodeIds.of(map(str, range(len(labels)))),
        class_names=tuple(str(label) for label in range(int(labels.max()) + 1)),
    )


def learned(graph: Graph, spec: ModelSpec) -> tuple[Diffusion, Trained]:
    trained = train(spec, graph)
    assert trained.diffusion is not None
    return trained.diffusion, trained


class Bilevel:
    """F(t) = min_W of the training objective under t = (sh^2, sz^2), and its derivative."""

    def __init__(self, graph: Graph, spec: ModelSpec) -> None:
        self.graph, self.spec = graph, spec
        self.features = FeatureMatrix(graph.features)
        self.rows = np.flatnonzero(graph.train_mask)

    def at(self, squares: tuple[float, float]) -> tuple[float, tuple[float, float]]:
        operators = DiffusionHops.build(
            self.features,
            one_hot(self.graph.labels, self.graph.train_mask, CLASSES),
            self.graph.adjacency,
            sigmas=Diffusion(squares[0] ** 0.5, squares[1] ** 0.5),
            gamma=self.spec.gamma,
            block_hops=self.spec.block_hops,
        )
        representation = Representation(Inputs(Input(self.features, operators), None), self.rows)
        y = torch.from_numpy(self.graph.labels[self.rows])
        objective = Objective(representation, loss_of(self.spec.loss), y, self.spec.regularization)
        start = torch.zeros((representation.columns, CLASSES), dtype=torch.float64)
        point = minimise(objective, start, 1e-13, lambda iteration, point: None).point
        weighted = self.features.matmul(side_by_side(representation.split(point.W)[0]))
        residual = representation.scattered(point.residual) / self.rows.size
        return point.value, objective_derivatives(operators, weighted, residual)


@every_pair(
    hops=[1, 2, 3],
    combine=list(Combine),
    loss=[LossKind.SOFTMAX, LossKind.OVR],
    squares=[(0.1, 0.2), (0.02, 0.0)],
    weighted=[False, True],
)
def test_the_gradient_is_that_of_the_bilevel_objective(
    hops: int, combine: Combine, loss: LossKind, squares: tuple[float, float], weighted: bool
) -> None:
    spec = ModelSpec(hops=hops, combine=combine, loss=loss, gamma=0.8, regularization=1e-2, diffusion=True)
    graph = clustered(40, 0)
    if weighted:
        graph = replace(graph, adjacency=with_weights(graph.adjacency), weighted=True)
    bilevel = Bilevel(graph, spec)
    _, slopes = bilevel.at(squares)
    # Weights of three orders of magnitude bend the objective more.
    step = 5e-5 if weighted else 1e-4
    for which, slope in enumerate(slopes):
        # One-sided to second order if the square is 0 and cannot fall.
        base = max(squares[which], step)
        ahead, here, behind = (
            bilevel.at(tuple(np.where(np.arange(2) == which, base + move, squares)))[0] for move in (step, 0.0, -step)
        )
        central = (ahead - behind) / (2 * step)
        curvature = (ahead - 2 * here + behind) / step**2
        expected = central - (base - squares[which]) * curvature
        assert slope == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert slopes[0] != 0.0


def test_learning_keeps_sigmas_that_leave_the_neighbours_their_say() -> None:
    graph = clustered(240, 1)
    plain = train(ModelSpec(), graph)
    diffusion, trained = learned(graph, ModelSpec(diffusion=True))
    assert diffusion.sigma_h > 0
    assert diffusion.sigma_z > 0
    test = graph.test_mask

    def accuracy(each: Trained) -> float:
        return float((each.logits.argmax(dim=1).numpy() == graph.labels)[test].mean())

    assert accuracy(trained) >= accuracy(plain) - 0.02
    assert trained.relative_gradient <= 1e-11
    assert trained.identity_error <= 1e-11


@pytest.mark.parametrize("held_out", ["val_mask", "test_mask"])
def test_labels_of_validation_and_test_nodes_are_no_input(held_out: str) -> None:
    """For any labels, the same sigmas mean the same operators; test labels do not even move the sigmas."""
    graph = clustered(90, 3)
    shuffled = graph.labels.copy()
    mask = getattr(graph, held_out)
    shuffled[mask] = (shuffled[mask] + 1) % CLASSES
    spec = ModelSpec(diffusion=True)
    (sigmas, trained), (others, retrained) = (learned(each, spec) for each in (graph, replace(graph, labels=shuffled)))
    left, right = (each.representation.inputs.features.operators for each in (trained, retrained))
    assert isinstance(left, DiffusionHops)
    assert isinstance(right, DiffusionHops)
    if held_out == "test_mask":
        assert sigmas == others
    for G, other in zip(left.operators, right.with_sigmas(sigmas).operators, strict=True):
        assert torch.equal(G.values(), other.values())


@pytest.mark.parametrize("loss", list(LossKind))
def test_every_loss_learns(loss: LossKind) -> None:
    solver = SolverKind.SGD if loss is LossKind.PLAIN_HINGE else SolverKind.NEWTON
    spec = ModelSpec(diffusion=True, loss=loss, solver=solver, regularization=1e-2, epochs=20, label_hops=1)
    diffusion, trained = learned(clustered(90, 5), spec)
    assert np.isfinite([diffusion.sigma_h, diffusion.sigma_z]).all()
    assert trained.identity_error <= 1e-10


def test_a_graph_without_edges_has_nothing_to_learn_from() -> None:
    graph = clustered(40, 6)
    lonely = replace(graph, adjacency=sp.csr_array(graph.adjacency.shape, dtype=np.float64))
    diffusion, _ = learned(lonely, ModelSpec(diffusion=True))
    assert diffusion == Diffusion(START**0.5, START**0.5)


def test_a_sigma_that_diverges_is_refused() -> None:
    """A tiny feature holds the class, neighbours are unrelated, and many nodes otherwise look alike."""
    rng = np.random.default_rng(7)
    nodes = 3_000
    labels = rng.integers(0, 2, nodes)
    features = np.stack([rng.standard_normal(nodes), np.where(labels == 1, 1.0, -1.0) * 0.1], axis=1)
    upper = np.triu(rng.random((nodes, nodes)) < 6.0 / nodes, 1)
    graph = split_graph(upper, features, labels, rng, 0.5)
    with pytest.raises(TrainingError, match=r"diverged.*Train without adaptive diffusion"):
        train(ModelSpec(diffusion=True, hops=1, regularization=1e-6), graph)
