"""Models that are trained once for all tests here; tests write to copies on disk, never to these."""

import numpy as np
import pytest

from model_store.build import BuiltModel
from model_store.datasets.load import load_dataset
from projector.graph.graph import Graph
from tests.unit.unlearning.stored import built


@pytest.fixture(scope="session")
def graph() -> Graph:
    return load_dataset("cora", data_dirs=[])


@pytest.fixture(scope="session")
def plain(graph: Graph) -> BuiltModel:
    return built(graph)


@pytest.fixture(scope="session")
def channel(graph: Graph) -> list[str]:
    """5 % of the training nodes."""
    training = np.flatnonzero(graph.train_mask)
    chosen = np.random.default_rng(0).choice(training, size=len(training) // 20, replace=False)
    return [graph.node_ids[row] for row in chosen]


@pytest.fixture(scope="session")
def injected(graph: Graph, channel: list[str]) -> BuiltModel:
    return built(graph, channel=channel)
