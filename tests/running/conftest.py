"""Fixtures for tests of processes."""

from pathlib import Path

import pytest

from tests.support.preloaded import Start
from tests.support.processes.lethe_process import LetheProcess, copied
from tests.support.service.running import small_model

__all__ = ["small_model"]


@pytest.fixture
def home(small_model: Path, tmp_path: Path) -> Path:
    """A LETHE_HOME with a model that was never served."""
    copied(small_model, tmp_path / "home" / "model")
    return tmp_path / "home"


@pytest.fixture
def servers(database_url: str, redis_url: str) -> dict[str, str]:
    """Settings of a process that uses the session's servers."""
    return {"database_url": database_url, "redis_url": redis_url}


@pytest.fixture
def prepared(home: Path, servers: dict[str, str], lethe_start: Start) -> Path:
    """The same home, after `prepare`."""
    prepare = LetheProcess(lethe_start, home, role="prepare", part="prepare", **servers)
    prepare.launch()
    assert prepare.ended().status == 0
    return home
