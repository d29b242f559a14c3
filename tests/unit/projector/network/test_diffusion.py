"""Adaptive diffusion against dense recomputation: operators, adjoints, and every kind of deletion."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph, one_hot
from projector.network.diffusion import Diffusion, DiffusionHops
from tests.support.everyday import every_case, everyday

Array = NDArray[np.float64]
SIGMAS = Diffusion(sigma_h=0.4, sigma_z=0.7)


@dataclass(frozen=True, eq=False)
class World:
    """A graph with features and labels, for building and checking operators."""

    adjacency: sp.csr_array
    features: Array
    #: -1 for nodes outside training.
    labels: NDArray[np.int64]
    classes: int

    @property
    def nodes(self) -> int:
        return len(self.features)

    @property
    def one_hot(self) -> sp.csr_array:
        return one_hot(self.labels, self.labels >= 0, self.classes)

    def build(
        self,
        block_hops: tuple[int, ...],
        *,
        gamma: float = 1.0,
        sigmas: Diffusion = SIGMAS,
        live: NDArray[np.bool_] | None = None,
        featured: NDArray[np.bool_] | None = None,
        sparse: bool = False,
    ) -> DiffusionHops:
        features = FeatureMatrix(sp.csr_array(self.features) if sparse else self.features)
        return DiffusionHops.build(
            features,
            self.one_hot,
            self.adjacency,
            sigmas=sigmas,
            gamma=gamma,
            block_hops=block_hops,
            live=live,
            featured=featured,
        )

    def without(self, live: NDArray[np.bool_], featured: NDArray[np.bool_], edges: NDArray[np.int64]) -> "World":
        adjacency = self.adjacency.toarray()
        adjacency[edges[:, 0], edges[:, 1]] = adjacency[edges[:, 1], edges[:, 0]] = 0.0
        adjacency[~live] = adjacency[:, ~live] = 0.0
        return World(
            sp.csr_array(adjacency),
            self.features * (live & featured)[:, None],
            np.where(live, self.labels, -1),
            self.classes,
        )


def oracle(world: World, hops: int, *, gamma: float = 1.0, sigmas: Diffusion = SIGMAS) -> list[Array]:
    """Return G_0 … G_{hops-1} by the paper's formula, dense, node by node, including nodes with all values 0."""
    H, Z = world.features, world.one_hot.toarray()
    operators = []
    for _ in range(hops):
        D = np.zeros((world.nodes, world.nodes))
        for i in range(world.nodes):
            neighbours = np.append(np.flatnonzero(world.adjacency[[i]].toarray()[0]), i)
            exponent = sigmas.sigma_h**2 * ((H[i] - H[neighbours]) ** 2).sum(axis=1)
            if world.labels[i] < 0:
                exponent += sigmas.sigma_z**2 * ((Z[i] - Z[neighbours]) ** 2).sum(axis=1)
            D[i, neighbours] = np.exp(-exponent) / np.exp(-exponent).sum()
        G = (1 - gamma) * np.eye(world.nodes) + gamma * D
        operators.append(G)
        H, Z = G @ H, G @ Z
    return operators


def products(operators: list[Array], hops: int) -> Array:
    """Return G_{hops-1} … G_0."""
    result = np.eye(len(operators[0]))
    for G in operators[:hops]:
        result = G @ result
    return result


def world(nodes: int, density: float, seed: int, *, features: Array | None = None) -> World:
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((nodes, nodes)) < density, 1)
    labels = np.where(rng.random(nodes) < 0.6, rng.integers(0, 3, nodes), -1)
    X = rng.standard_normal((nodes, 6)) if features is None else features
    return World(sp.csr_array((upper | upper.T).astype(np.float64)), X, labels, 3)


def ring(nodes: int) -> World:
    """Return a ring with neighbours of first and second degree: the graph is much larger than any ball."""
    step = np.abs(np.subtract.outer(np.arange(nodes), np.arange(nodes)))
    near = np.minimum(step, nodes - step)
    return replace(world(nodes, 0.0, 8), adjacency=sp.csr_array(((near == 1) | (near == 2)).astype(np.float64)))


WORLDS: dict[str, Callable[[], World]] = {
    "random": lambda: world(25, 0.2, 0),
    "with isolated nodes": lambda: world(40, 0.03, 1),
    "complete": lambda: world(7, 1.1, 2),
    "one node": lambda: world(1, 0.0, 3),
    "no edge": lambda: world(5, 0.0, 4),
    "duplicate features": lambda: world(20, 0.3, 5, features=np.repeat(np.eye(6)[:5], 4, axis=0)),
    "ring": lambda: ring(60),
    "no features": lambda: world(12, 0.3, 6, features=np.zeros((12, 4))),
}


def agree(found: DiffusionHops, expected: DiffusionHops) -> None:
    for G, wanted in zip(found.operators, expected.operators, strict=True):
        assert np.abs(G.to_dense().numpy() - wanted.to_dense().numpy()).max(initial=0.0) <= 1e-12


@every_case("name", WORLDS)
@every_case("sparse", [False, True])
@every_case("gamma", [1.0, 0.6])
def test_operators_are_those_of_the_formula(name: str, sparse: bool, gamma: float) -> None:
    given = WORLDS[name]()
    found = given.build((3,), gamma=gamma, sparse=sparse).operators
    for G, wanted in zip(found, oracle(given, 3, gamma=gamma), strict=True):
        assert np.abs(G.to_dense().numpy() - wanted).max() <= 1e-13


@every_case("name", WORLDS)
@every_case("block_hops", [(1,), (3,), (0, 1, 2), (0, 1, 2, 3)])
def test_products_are_those_of_the_dense_operators(name: str, block_hops: tuple[int, ...]) -> None:
    given = WORLDS[name]()
    operators = given.build(block_hops)
    dense = oracle(given, block_hops[-1])
    R = [products(dense, hop) for hop in block_hops]
    rng = np.random.default_rng(7)
    Z, Y = rng.standard_normal((given.nodes, len(R), 4)), rng.standard_normal((given.nodes, 4))
    forward = operators.forward(torch.from_numpy(Z.reshape(given.nodes, -1))).numpy()
    assert np.allclose(forward, sum(R_b @ Z[:, b] for b, R_b in enumerate(R)), atol=1e-12)
    adjoint = operators.adjoint(torch.from_numpy(Y)).numpy().reshape(Z.shape)
    for b, (R_b, image) in enumerate(zip(R, operators.images(torch.from_numpy(Y)), strict=True)):
        assert np.allclose(adjoint[:, b], R_b.T @ Y, atol=1e-12)
        assert np.allclose(image.numpy(), R_b @ Y, atol=1e-12)
    assert all(float(G.values().min()) >= 0.0 for G in operators.operators)
    assert (operators.row_entries.numpy() >= sum(np.count_nonzero(G, axis=1) for G in dense)).all()
    assert operators.blocks == len(R)


def random_deletions(rng: np.random.Generator, given: World, steps: int) -> list[dict[str, NDArray[np.int64]]]:
    """Return each step's deletions: some nodes, edges (existing or not, in either direction) and features."""
    upper = np.argwhere(given.adjacency.toarray() > 0)
    found = []
    for _ in range(steps):
        nodes = rng.integers(0, given.nodes, rng.integers(0, 3))
        feature_rows = rng.integers(0, given.nodes, rng.integers(0, 3))
        edges = rng.integers(0, given.nodes, (1, 2))
        if len(upper):
            edges = np.concatenate([edges, upper[rng.integers(0, len(upper), rng.integers(0, 4))]])
        found.append({"nodes": nodes, "edges": edges, "feature_rows": feature_rows})
    return found


@pytest.mark.parametrize("seed", everyday(range(3), 0))
@every_case("name", WORLDS)
def test_deletions_lead_to_what_is_built_from_what_remains(name: str, seed: int) -> None:
    given, rng = WORLDS[name](), np.random.default_rng(seed)
    operators = given.build((0, 1, 2, 3), gamma=0.8)
    live, featured = np.ones(given.nodes, dtype=np.bool_), np.ones(given.nodes, dtype=np.bool_)
    edges = np.empty((0, 2), dtype=np.int64)
    for step in random_deletions(rng, given, 4):
        before = [G.values().clone() for G in operators.operators]
        previous, operators = operators, operators.without(**step)
        live[step["nodes"]] = False
        featured[step["feature_rows"]] = False
        edges = np.concatenate([edges, step["edges"]])
        remaining = given.without(live, featured, edges)
        agree(operators, remaining.build((0, 1, 2, 3), gamma=0.8, live=live))
        for G, wanted in zip(operators.operators, oracle(remaining, 3, gamma=0.8), strict=True):
            assert np.abs(G.to_dense().numpy() - wanted * live[:, None]).max() <= 1e-12
        assert all(torch.equal(G.values(), old) for G, old in zip(previous.operators, before, strict=True))
        assert not operators.labels.toarray()[~live].any()


def test_nothing_far_from_a_deletion_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    operators = ring(300).build((0, 1, 2, 3))
    measured: list[int] = []
    dense_columns = FeatureMatrix.dense_columns

    def spied(self: FeatureMatrix, start: int, stop: int, rows: NDArray[np.int64]) -> torch.Tensor:
        measured.append(rows.size)
        return dense_columns(self, start, stop, rows)

    monkeypatch.setattr(FeatureMatrix, "dense_columns", spied)
    operators.without(nodes=np.array([150]))
    # Hop 1: edges within 4 of the node, whose ends average over distance 6 + 2; hop 2: within 6, 8 + 2.
    assert 0 < max(measured) <= 24


def test_labels_do_not_decide_what_training_nodes_average_over() -> None:
    given = WORLDS["random"]()
    training = given.labels >= 0
    without_z = given.build((2,), sigmas=replace(SIGMAS, sigma_z=0.0))
    with_z = given.build((2,), sigmas=replace(SIGMAS, sigma_z=2.0))
    rows = [each.operators[0].to_dense().numpy() for each in (without_z, with_z)]
    assert np.array_equal(rows[0][training], rows[1][training])
    assert not np.array_equal(rows[0][~training], rows[1][~training])
    # Before the first hop every label is equally far from none, so the choice of label matters only after it.
    other = replace(given, labels=np.where(training, (given.labels + given.labels % 2) % 3, -1)).build((2,))
    first, second = (each.to_dense().numpy() for each in other.operators)
    expected = [each.to_dense().numpy() for each in given.build((2,)).operators]
    assert np.array_equal(first, expected[0])
    assert np.array_equal(second[training], expected[1][training])
    assert not np.array_equal(second[~training], expected[1][~training])


@pytest.fixture(scope="module")
def cora_world(cora: Graph) -> World:
    features = cora.features if isinstance(cora.features, np.ndarray) else cora.features.toarray()
    labels = np.where(cora.train_mask, cora.labels, -1)
    return World(cora.adjacency, features.astype(np.float64), labels, cora.num_classes)


def test_span_coefficients_explain_weights_in_the_span_of_diffused_features(cora_world: World) -> None:
    cora = cora_world
    operators = cora.build((0, 1, 2), sigmas=Diffusion(sigma_h=0.1, sigma_z=0.3))
    rng = np.random.default_rng(0)
    rows = np.flatnonzero(cora.labels >= 0)
    U = rng.standard_normal((rows.size, cora.classes))
    spread = np.zeros((cora.nodes, cora.classes))
    spread[rows] = U
    beta = operators.adjoint(torch.from_numpy(spread)).numpy().reshape(cora.nodes, 3, cora.classes)
    H = [image.numpy() for image in operators.images(torch.from_numpy(cora.features))]
    for b, H_b in enumerate(H):
        W_b = H_b[rows].T @ U
        assert np.linalg.norm(W_b - cora.features.T @ beta[:, b]) <= 1e-12 * np.linalg.norm(W_b)
