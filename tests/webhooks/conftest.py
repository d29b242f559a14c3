"""A world with requests and endpoints."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.service.db_harness import open_database
from tests.support.service.webhook_world import WebhookWorld


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[WebhookWorld]:
    async with open_database(database_url, tmp_path) as database:
        yield WebhookWorld(database, tmp_path)
