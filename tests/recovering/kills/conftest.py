"""Fixtures for tests of faults: one graph, one trained model, homes copied from one."""

import pytest

from tests.support.kills.deletions import People, Runs, template_of
from tests.support.models.trained_models import Models
from tests.support.preloaded import Preloaded
from tests.support.service.people import private_graph


@pytest.fixture(scope="session")
def people(tmp_path_factory: pytest.TempPathFactory, preloaded: Preloaded) -> People:
    folder = tmp_path_factory.mktemp("people")
    dataset = str(private_graph(folder / "people.npz"))
    models = Models(folder)
    return People.of(models.graph(dataset), template_of(preloaded, models.trained(dataset), folder / "template"))


@pytest.fixture(scope="session")
def runs(people: People, preloaded: Preloaded, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(people, preloaded, tmp_path_factory.mktemp("runs"))
