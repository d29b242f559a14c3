"""A model of a citation graph, for tests on real input; torch is imported only by tests that need it."""

from typing import TYPE_CHECKING

import pytest

from tests.support.models.citations import cora

if TYPE_CHECKING:
    from projector.graph.graph import Graph
    from projector.training.fit import Trained

__all__ = ["cora"]


@pytest.fixture(scope="session")
def trained_cora(cora: "Graph") -> "Trained":
    """The default specification, trained on `cora`."""
    from projector.network.spec import ModelSpec
    from projector.training.fit import train

    return train(ModelSpec(), cora)
