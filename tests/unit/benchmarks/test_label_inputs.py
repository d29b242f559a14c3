"""Label inputs as the paper and its code have them, against dense matrices."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.paper.label_inputs import (
    DIFFUSED,
    LABEL_INPUTS,
    REUSING,
    label_inputs_accuracy,
    second_pass_logits,
    z_blocks,
    z_blocks_logits,
)
from projector import ModelSpec
from projector.network.diffusion import DiffusionHops
from projector.training.fit import train
from tests.support.mathematics.baselines import dense_propagation, small_graph

pytestmark = pytest.mark.ci

GRAPH = small_graph(nodes=60)
ONE_HOT = np.eye(3)[GRAPH.labels]
Y = ONE_HOT * GRAPH.train_mask[:, None]


def dense_steps(hops: DiffusionHops) -> list[np.ndarray]:
    return [G.to_dense().numpy() for G in hops.operators]


def operators(hops: int) -> DiffusionHops:
    found = train(replace(DIFFUSED, hops=hops), GRAPH).representation.inputs.features.operators
    assert isinstance(found, DiffusionHops)
    return found


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_z_blocks_are_products_of_the_diffusion_without_the_diagonal(hops: int) -> None:
    diffusion = operators(hops)
    R, with_own, without = np.eye(GRAPH.nodes), [], []
    for G in dense_steps(diffusion):
        R = G @ R
        with_own.append(R @ Y)
        without.append((R - np.diag(np.diag(R))) @ Y)
    np.testing.assert_allclose(z_blocks(diffusion, own=True), np.hstack(with_own), atol=1e-14)
    np.testing.assert_allclose(z_blocks(diffusion, own=False), np.hstack(without), atol=1e-14)


@pytest.mark.parametrize("own", [False, True])
def test_the_model_with_z_blocks_is_the_linear_model_on_all_blocks(own: bool) -> None:
    diffusion = operators(2)
    first, second = dense_steps(diffusion)
    X = np.asarray(GRAPH.features)
    H = np.hstack([X, first @ X, second @ first @ X, z_blocks(diffusion, own=own)])
    expected = train(ModelSpec(hops=0), replace(GRAPH, features=H)).logits.numpy()
    np.testing.assert_allclose(z_blocks_logits(GRAPH, 0, own=own), expected, atol=1e-7)


def test_the_second_pass_has_the_first_ones_weights_and_its_predictions_as_labels() -> None:
    trained, P, X = train(REUSING, GRAPH), dense_propagation(GRAPH), np.asarray(GRAPH.features)
    labels = np.where(GRAPH.train_mask[:, None], ONE_HOT, np.eye(3)[trained.logits.argmax(dim=1).numpy()])
    expected = sum(np.linalg.matrix_power(P, hop) @ X @ W for hop, W in enumerate(trained.weights.numpy()))
    for hop, W in enumerate(trained.label_weights.numpy(), start=1):
        power = np.linalg.matrix_power(P, hop)
        expected = expected + (power - np.diag(np.diag(power))) @ labels @ W
    np.testing.assert_allclose(second_pass_logits(GRAPH, 0), expected, atol=1e-12)


@pytest.mark.parametrize("method", LABEL_INPUTS)
def test_classes_of_test_nodes_are_never_read(method: str) -> None:
    other = replace(GRAPH, labels=np.where(GRAPH.test_mask, (GRAPH.labels + 1) % 3, GRAPH.labels))
    right, wrong = (label_inputs_accuracy(graph, method, 0) for graph in (GRAPH, other))
    assert 0.4 < right <= 1
    assert right + wrong <= 1
