"""The injected-channel norm from coefficients equals that of training with such a channel."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from model_store.build import BuiltModel, build_model
from projector.graph.features import FeatureMatrix
from projector.graph.graph import one_hot
from projector.network.inputs import Input, Inputs, feature_operators, label_input
from projector.network.losses import loss_of
from projector.network.propagation import Propagator
from projector.network.representation import Representation
from projector.network.spec import SolverKind
from projector.solvers.newton import minimise
from projector.solvers.objective import Objective
from tests.support.mathematics.configurations import Configuration, every, pairwise
from tests.support.mathematics.matrix import graph_for

SMALL, TOLERANCE = 1e-4, 1e-13


def exact(configurations: Callable[[], list[Configuration]]) -> list[Configuration]:
    """Return those trained to the optimum, one for each kind of request."""
    found: dict[tuple[object, ...], Configuration] = {}
    for each in configurations():
        if each.solver is SolverKind.NEWTON:
            key = (each.combine, each.loss, each.label_hops, each.diffusion, each.mlp, each.layout)
            found.setdefault(key, each)
    return list(found.values())


def trained_with_channel(model: BuiltModel, nodes: NDArray[np.int64], size: float) -> tuple[NDArray[np.float64], float]:
    """Train `model` again with a channel of `size` on `nodes`, propagation held fixed. Returns the channel's rows of W
    (blocks, C) over its size, and its injected norm by the coefficients.
    """
    graph, spec = model.graph, model.manifest.spec
    propagator = Propagator.build(graph.adjacency, spec.propagation, spec.self_loops)
    labels = one_hot(graph.labels, graph.train_mask, graph.num_classes)
    operators = feature_operators(spec, FeatureMatrix(graph.features), labels, propagator, model.manifest.diffusion)
    dense = graph.features if isinstance(graph.features, np.ndarray) else graph.features.toarray()
    channel = np.zeros((graph.nodes, 1))
    channel[nodes] = size
    widened = FeatureMatrix(np.hstack([dense.astype(np.float64), channel]))
    inputs = Inputs(Input(widened, operators), label_input(spec, labels, propagator))
    rows = np.flatnonzero(graph.train_mask)
    representation = Representation(inputs, rows)
    objective = Objective(representation, loss_of(spec.loss), torch.from_numpy(graph.labels[rows]), spec.regularization)
    start = torch.zeros((representation.columns, graph.num_classes), dtype=torch.float64)
    found = minimise(objective, start, TOLERANCE, lambda iteration, point: None)
    W = representation.split(found.point.W)[0][:, -1].numpy() / size
    beta = operators.adjoint(representation.scattered(objective.dual(found.point)))
    sums = beta[torch.from_numpy(nodes)].sum(dim=0).reshape(-1, graph.num_classes)
    return W, float(torch.linalg.vector_norm(sums, dim=1).sum())


def check(configuration: Configuration) -> None:
    graph = graph_for(configuration)
    public = [graph.node_ids[row] for row in np.flatnonzero(graph.train_mask)[:10]] if configuration.mlp else []
    model = build_model(graph, configuration.spec, name="norm", dataset="synthetic", split="full", public=public)
    rng = np.random.default_rng(4)
    for size in (1, 3, 8):
        nodes = rng.choice(graph.nodes, size=size, replace=False)
        norm = float(np.linalg.norm(model.beta[:, nodes].sum(axis=1), axis=1).sum())
        injected, _ = trained_with_channel(model, nodes, SMALL)
        assert np.linalg.norm(injected, axis=1).sum() == pytest.approx(norm, rel=1e-3, abs=1e-12)
        present, by_coefficients = trained_with_channel(model, nodes, 1.0)
        assert by_coefficients == pytest.approx(np.linalg.norm(present, axis=1).sum(), rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("configuration", exact(pairwise), ids=str)
def test_the_norm_without_retraining_is_the_norm_with_it(configuration: Configuration) -> None:
    check(configuration)


@pytest.mark.slow
@pytest.mark.parametrize("configuration", exact(every), ids=str)
def test_the_norm_without_retraining_is_the_norm_with_it_everywhere(configuration: Configuration) -> None:
    check(configuration)
