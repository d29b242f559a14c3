"""Fixtures shared by all tests: real Postgres and Valkey servers, empty for each test.

Fixtures import slow modules themselves, so that `./lethe test FILE` starts as fast as FILE does.
"""

import gc
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from service.errors import ConfigurationError
from service.predictions import layout
from service.processes.private_servers import Embedded, PrivateServers
from service.settings import require_known_variables
from tests.support import in_memory
from tests.support.everyday import LEFT_OUT
from tests.support.preloaded import Preloaded, Start, service_preloaded

if TYPE_CHECKING:
    from service.settings import Settings
    from tests.support.databases import Templates
    from tests.support.service.api_harness import Api
    from tests.support.service.db_harness import Database
    from tests.support.service.running import Lethe

# The shared helpers contain many of the assertions.
_SHARED = ("clients", "documents", "evidence", "kills", "mathematics", "models", "predictions", "processes", "service")
pytest.register_assert_rewrite(*(f"tests.support.{name}" for name in _SHARED))
pytest_plugins = ["tests.support.programs", "tests.support.failures", "tests.support.sweeps"]
pytest_plugins += ["tests.support.shared_folders", "tests.support.stand_ins"]
pytest_plugins += ["tests.support.on_device"] if "TEST_DEVICE" in os.environ else []


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep the tests' files in memory, unless --basetemp names a folder; runs with sweeps use the disk."""
    try:
        require_known_variables(os.environ)
    except ConfigurationError as error:
        raise pytest.UsageError(str(error)) from None
    option = config.option
    if option.basetemp is None and option.markexpr in LEFT_OUT and not hasattr(config, "workerinput"):
        folder = in_memory.new_folder()
        if folder is not None:
            # pytest-xdist gives each of its workers a folder below it.
            option.basetemp = str(folder)
            config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Set no deadline for drawn cases, since the machine may be loaded. The settings must exist before a module's
    import.
    """
    if "hypothesis" in module_path.read_text():
        from hypothesis import HealthCheck, settings

        settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("patient")


def pytest_collection_finish() -> None:
    """Keep the garbage collector from searching in every test what was imported for all of them."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def publications(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the service's shared memory with the test files, so that both are removed together."""
    layout._MEMORY = tmp_path_factory.mktemp("memory")


@pytest.fixture(scope="session")
def private_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServers]:
    """One Postgres and one Valkey for the whole session, without fsync."""
    with Embedded(tmp_path_factory.mktemp("servers"), durable=False) as servers:
        yield servers


@pytest.fixture(scope="session")
def postgres_url(private_servers: PrivateServers) -> str:
    """`postgresql://…` of the session's server; its database is shared, so tests use `database_url`."""
    assert private_servers.database_url is not None
    return private_servers.database_url


@pytest.fixture
def make_database(postgres_url: str) -> Iterator[Callable[[], str]]:
    """Return a function that creates a fresh empty database and returns its URL; all are dropped after the test."""
    from tests.support.databases import fresh_database

    with ExitStack() as stack:
        yield lambda: stack.enter_context(fresh_database(postgres_url))


@pytest.fixture
def empty_database_url(make_database: Callable[[], str]) -> str:
    """`postgresql://…` of a fresh empty database."""
    return make_database()


@pytest.fixture(scope="session")
def templates(postgres_url: str) -> "Templates":
    """Databases to copy from."""
    from tests.support.databases import Templates

    return Templates(postgres_url)


@pytest.fixture(scope="session")
def plain_tracebacks() -> None:
    """Log errors in this process as Python prints them: by default structlog adds all locals, which takes seconds."""
    import structlog

    *processors, _ = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*processors, plain])


@pytest.fixture
def database_url(templates: "Templates", plain_tracebacks: None) -> Iterator[str]:
    """`postgresql://…` of a fresh database at the schema of this version, without a row."""
    with templates.migrated() as url:
        yield url


@pytest.fixture
async def db(database_url: str, tmp_path: Path) -> "AsyncIterator[Database]":
    """A fresh database, a key, and what accepts requests."""
    from tests.support.service.db_harness import open_database

    async with open_database(database_url, tmp_path) as database:
        yield database


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> "AsyncIterator[Api]":
    """The API in this process, without an unlearner."""
    from tests.support.service.api_harness import serving

    async with serving(database_url, tmp_path) as api:
        yield api


@pytest.fixture
async def lethe(settings: "Settings") -> "AsyncIterator[Lethe]":
    """All of Lethe in this process, ready."""
    from tests.support.service.db_harness import until
    from tests.support.service.running import running

    async with running(settings) as lethe:
        await until(lethe.is_ready)
        yield lethe


@pytest.fixture
def redis_url(private_servers: PrivateServers) -> str:
    """`redis://…` of the session's server, emptied before the test."""
    import redis

    assert private_servers.redis_url is not None
    with redis.Redis.from_url(private_servers.redis_url) as client:
        client.flushall()
    return private_servers.redis_url


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[Embedded]:
    """The test's own Postgres, not started: `start()` returns the URL, `stop()` stops it, always on the same port."""
    embedded = Embedded(tmp_path / "own-postgres", valkey=False, durable=False)
    yield embedded
    embedded.stop()


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[Embedded]:
    """The test's own Valkey, not started: `start()` returns the URL, `stop()` stops it, always on the same port."""
    embedded = Embedded(tmp_path / "own-valkey", postgres=False, durable=False)
    yield embedded
    embedded.stop()


@pytest.fixture(scope="session")
def preloaded() -> Iterator[Preloaded]:
    """The service, imported once for all its processes that tests start."""
    program = service_preloaded()
    yield program
    program.close()


@pytest.fixture(scope="session")
def lethe_start(preloaded: Preloaded) -> Start:
    """Starts Lethe's command line."""
    return preloaded.python("-m", "service.cli")
