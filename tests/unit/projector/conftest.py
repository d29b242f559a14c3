"""A model of a citation graph, for tests on real input."""

import pytest

from projector.graph.graph import Graph
from projector.network.spec import ModelSpec
from projector.training.fit import Trained, train
from tests.support.models.citations import cora

__all__ = ["cora"]


@pytest.fixture(scope="session")
def trained_cora(cora: Graph) -> Trained:
    """The default specification, trained on `cora`."""
    return train(ModelSpec(), cora)
