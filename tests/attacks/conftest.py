"""Fixtures of the attacks: a real `lethe serve` on real servers."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.models.trained_models import SMALL, Models
from tests.support.preloaded import fresh
from tests.support.processes.lethe_process import LetheProcess, copied
from tests.support.service.attacked import Attacked, fencing, resident

#: Descriptors that the service may open: few, so that the limits are within an attack's reach.
DESCRIPTORS = 512


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Models(tmp_path_factory.mktemp("model")).trained(SMALL)


@pytest.fixture
def attacked(model: Path, tmp_path: Path, database_url: str, redis_url: str) -> Iterator[Attacked]:
    home = tmp_path / "home"
    copied(model, home / "model")
    limited = f'ulimit -n {DESCRIPTORS}; exec "$0" "$@"'
    command = fresh("sh", "-c", limited, sys.executable, "-m", "service.cli")
    with LetheProcess(command, home, database_url=database_url, redis_url=redis_url).start() as lethe:
        attacked = Attacked(lethe, database_url, asyncio.run(fencing(database_url)), resident(lethe))
        attacked.ready()
        attacked.memory = resident(lethe)
        try:
            yield attacked
        finally:
            for process in attacked.running:
                process.kill()
                process.wait()
