"""Models trained once for all tests here; tests write to copies on disk, never to these."""

import numpy as np
import pytest

from model_store.build import BuiltModel
from model_store.datasets.load import load_dataset
from projector.graph.graph import Graph
from tests.support.everyday import everyday
from tests.support.models.stored import SMALL, built


@pytest.fixture(scope="session", params=everyday(["small", "cora"], "small"))
def graph(request: pytest.FixtureRequest) -> Graph:
    return load_dataset(SMALL if request.param == "small" else request.param, data_dirs=[])


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
