"""The citation graph that is shipped with Lethe."""

import pytest

from model_store.datasets.load import load_dataset
from projector.graph.graph import Graph


@pytest.fixture(scope="session")
def cora() -> Graph:
    return load_dataset("cora", data_dirs=[])
