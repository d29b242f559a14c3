"""Fixtures of the tests of faults: one graph, one trained model, one program that is loaded, homes copied from one."""

from collections.abc import Iterator

import pytest
from deletions import People, Runs, template_of
from doomed_process import Launcher
from test_end_to_end_erasure import private_graph
from trained_models import Models


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    program = Launcher()
    yield program
    program.close()


@pytest.fixture(scope="session")
def people(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher) -> People:
    folder = tmp_path_factory.mktemp("people")
    dataset = str(private_graph(folder / "people.npz"))
    models = Models(folder, None)
    return People.of(models.graph(dataset), template_of(launcher, models.trained(dataset), folder / "template"))


@pytest.fixture(scope="session")
def runs(people: People, launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(people, launcher, tmp_path_factory.mktemp("runs"))
