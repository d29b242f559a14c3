"""One Lethe for all tests of this folder, and a browser."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, sync_playwright
from sqlalchemy import text

from service.db.engine import create_engine
from service.db.transactions import transaction
from service.domain.states import EventType
from service.log.checkpoints import Signer
from service.log.events import EventRepository
from service.log.leaves import LogKeyAdded
from tests.support.clients.visits import Visit
from tests.support.databases import Templates
from tests.support.models.trained_models import SMALL, Models
from tests.support.preloaded import Start
from tests.support.processes.lethe_process import LetheProcess, copied
from tests.support.programs import find_program
from tests.support.service.db_harness import Said

#: The model's cohorts of canaries: one for every drill of the tests, and some more.
COHORTS = 6


@pytest.fixture(scope="package")
def dashboard_database(templates: Templates) -> Iterator[str]:
    with templates.migrated() as url:
        yield url


async def log_an_import_and_a_key(database_url: str) -> None:
    """Log an import and a new key, as if both had happened."""
    imported = {"model_version_before": 3, "model_version_after": 4}
    imported |= {"excluded_nodes": 4, "excluded_features": 0, "excluded_edges": 0}
    key = str(Signer("lethe/0123456789abcdef", bytes(32)).public)
    engine = create_engine(database_url, pool_size=1)
    async with transaction(engine) as connection:
        model = await connection.scalar(text("SELECT model FROM pointers"))
        events = EventRepository(connection)
        await events.append_unrequested(EventType.IMPORTED, Said(model=model, **imported))
        await events.append_unrequested(EventType.LOG_KEY_ADDED, LogKeyAdded(2, key))
    await engine.dispose()


@pytest.fixture(scope="package")
def lethe(
    tmp_path_factory: pytest.TempPathFactory,
    lethe_start: Start,
    dashboard_database: str,
) -> Iterator[LetheProcess]:
    """A served model with canaries and repairs, and a few recorded deletions.

    It has its own Valkey. Sharing one with other services would mix their requests into its stream. It would drop them,
    since they are missing from its database, and they would return 15 s later.
    """
    home = tmp_path_factory.mktemp("dashboard") / "home"
    home.mkdir()
    copied(Models(tmp_path_factory.mktemp("trained")).trained(SMALL, cohorts=COHORTS), home / "model")
    with LetheProcess(lethe_start, home, repair="always", database_url=dashboard_database).start() as process:
        for number, nodes in enumerate((["1"], ["2", "3"], ["5"])):
            process.delete(nodes, reference=f"DSR-{number}")
        asyncio.run(log_an_import_and_a_key(dashboard_database))
        yield process


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for the tests of one file: while playwright runs, its event loop blocks those of other tests."""
    with sync_playwright() as playwright:
        # Chromium's sandbox does not run as root.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        running = playwright.chromium.launch(executable_path=find_program("chromium"), args=flags)
        yield running
        running.close()


@pytest.fixture
def visit(browser: Browser, lethe: LetheProcess) -> Iterator[Callable[..., Visit]]:
    """Return a function that opens a window of `width` pixels in a colour `scheme`; checked after the test."""
    opened: list[Visit] = []

    def start(width: int = 1280, scheme: Literal["light", "dark"] = "light") -> Visit:
        opened.append(Visit(browser, lethe.url, width, scheme))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    return (Path(__file__).parent / "vendor" / "axe" / "axe.min.js").read_text()
