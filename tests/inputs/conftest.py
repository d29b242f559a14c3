"""Fixtures for the sweeps over inputs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.inputs.asked import Asked, asked


@pytest.fixture
async def ask(database_url: str, tmp_path: Path) -> AsyncIterator[Asked]:
    async with asked(database_url, tmp_path / "home") as running:
        yield running
