"""The citation graph that is shipped with Lethe."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from projector.graph.graph import Graph


@pytest.fixture(scope="session")
def cora() -> "Graph":
    from model_store.datasets.load import load_dataset

    return load_dataset("cora", data_dirs=[])
