"""Fixtures for tests that run Lethe as a process."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.models.trained_models import Models
from tests.support.preloaded import Start
from tests.support.processes.lethe_process import LetheProcess, copied


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def serve(
    tmp_path: Path, lethe_start: Start, database_url: str, redis_url: str
) -> Iterator[Callable[..., LetheProcess]]:
    """Return a function that serves a copy of a trained model on the session's servers, and waits until it is ready."""
    running: list[LetheProcess] = []

    def start(model: Path, **settings: Any) -> LetheProcess:
        home = tmp_path / f"home-{len(running)}"
        home.mkdir()
        copied(model, home / "model")
        servers = {"database_url": database_url, "redis_url": redis_url}
        running.append(LetheProcess(lethe_start, home, **(servers | settings)))
        return running[-1].start()

    yield start
    for process in running:
        process.close()
