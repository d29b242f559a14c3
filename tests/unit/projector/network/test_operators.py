"""The operators R_b against dense powers of P, and each adjoint against its forward product."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from projector.network.operators import FeatureHops, LabelHops, Operators, SharedSweep
from projector.network.propagation import Propagator
from projector.network.spec import PropagationKind
from tests.support.everyday import every_case

CLASSES = 3


def random_graph(nodes: int, density: float, seed: int) -> sp.csr_array:
    upper = np.triu(np.random.default_rng(seed).random((nodes, nodes)) < density, 1)
    return sp.csr_array((upper | upper.T).astype(np.float64))


def complete(nodes: int) -> sp.csr_array:
    return sp.csr_array(np.ones((nodes, nodes)) - np.eye(nodes))


GRAPHS: list[Callable[[], sp.csr_array]] = [
    lambda: random_graph(25, 0.2, 0),
    lambda: random_graph(40, 0.05, 1),
    lambda: complete(7),
    lambda: sp.csr_array((1, 1)),
    lambda: sp.csr_array((5, 5)),
]


def dense(propagator: Propagator) -> np.ndarray:
    return propagator.apply(torch.eye(propagator.nodes, dtype=torch.float64)).numpy()


def dense_blocks(operators: Operators, P: np.ndarray) -> list[np.ndarray]:
    if isinstance(operators, FeatureHops):
        return [np.linalg.matrix_power(P, hop) for hop in operators.block_hops]
    powers = [np.linalg.matrix_power(P, hop) for hop in range(1, operators.blocks + 1)]
    return [power - np.diag(np.diag(power)) for power in powers]


@every_case("graph", GRAPHS)
@every_case("kind", list(PropagationKind))
@every_case("self_loops", [0.0, 1.0, 0.3])
@every_case("deleted", [0, 3])
def test_products_are_those_of_the_dense_operators(
    graph: Callable[[], sp.csr_array], kind: PropagationKind, self_loops: float, deleted: int
) -> None:
    adjacency = graph()
    propagator = Propagator.build(adjacency, kind, self_loops)
    propagator = propagator.without_nodes(np.arange(min(deleted, adjacency.shape[0] - 1)))
    P = dense(propagator)
    rng = np.random.default_rng(2)
    for operators in (
        FeatureHops(propagator, (2,)),
        FeatureHops(propagator, (0, 1, 2)),
        FeatureHops(propagator, (0, 1, 2, 3)),
        LabelHops(propagator, 1),
        LabelHops(propagator, 2),
        LabelHops(propagator, 3),
    ):
        blocks = dense_blocks(operators, P)
        assert operators.blocks == len(blocks)
        Z = rng.standard_normal((len(P), len(blocks), CLASSES))
        R = rng.standard_normal((len(P), CLASSES))
        forward = operators.forward(torch.from_numpy(Z.reshape(len(P), -1))).numpy()
        assert np.allclose(forward, sum(block @ Z[:, b] for b, block in enumerate(blocks)), atol=1e-12)
        adjoint = operators.adjoint(torch.from_numpy(R)).numpy().reshape(Z.shape)
        for b, block in enumerate(blocks):
            assert np.allclose(adjoint[:, b], block.T @ R, atol=1e-12)
        for image in operators.images(torch.eye(len(P), dtype=torch.float64)):
            assert float(image.min()) >= -1e-15
        assert (operators.row_entries.numpy() >= operators.block_hops[-1] * np.count_nonzero(P, axis=1)).all()


@every_case("graph", GRAPHS)
@every_case("kind", list(PropagationKind))
@every_case("block_hops", [(1,), (3,), (0, 1), (0, 1, 2, 3)])
@every_case("label_hops", [1, 2, 3])
def test_one_sweep_for_features_and_labels_is_both_of_theirs(
    graph: Callable[[], sp.csr_array], kind: PropagationKind, block_hops: tuple[int, ...], label_hops: int
) -> None:
    propagator = Propagator.build(graph(), kind, 1.0)
    features, labels = FeatureHops(propagator, block_hops), LabelHops(propagator, label_hops)
    sweep, random = SharedSweep(features, labels), torch.Generator().manual_seed(0)
    Z, V, R = (
        torch.randn((propagator.nodes, blocks * CLASSES), dtype=torch.float64, generator=random)
        for blocks in (features.blocks, labels.blocks, 1)
    )
    given = Z.clone(), V.clone(), R.clone()
    assert torch.allclose(sweep.forward(Z, V), features.forward(Z) + labels.forward(V), atol=1e-12)
    for found, expected in zip(sweep.adjoint(R), (features.adjoint(R), labels.adjoint(R)), strict=True):
        assert torch.allclose(found, expected, atol=1e-12)
    assert all(after.equal(before) for after, before in zip((Z, V, R), given, strict=True))


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_no_label_reaches_its_own_node(hops: int) -> None:
    operators = LabelHops(Propagator.build(random_graph(30, 0.2, 3), PropagationKind.SYM, 1.0), hops)
    for node in (0, 7, 29):
        own = torch.zeros((30, hops), dtype=torch.float64)
        own[node] = 1.0
        assert abs(float(operators.forward(own)[node])) < 1e-15


def test_powers_beyond_three_have_no_diagonal() -> None:
    with pytest.raises(ValueError, match="power 4"):
        Propagator.build(complete(3), PropagationKind.SYM, 1.0).diagonal_of_power(4)
