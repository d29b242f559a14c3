"""Postgres stops, restarts, or loses the connection at the worst moment."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.exc import DBAPIError

from service.access.key_disposal import UnneededKeys
from service.db import migrate
from service.db.engine import Engine, create_engine
from service.db.notifications import listen
from service.db.transactions import CommitUnanswered, is_outage, transaction
from service.errors import DatabaseDamaged, Unavailable
from service.predictions.version_rows import PointerRepository
from service.processes.private_servers import Embedded
from service.reports.queries import AuditFilters
from service.reports.search import search
from service.requests.intake import Accepted, Intake
from tests.support.service.db_harness import (
    MODEL,
    POINTER,
    Database,
    Proxy,
    accepted_ids,
    is_waiting,
    next_pointer,
    open_database,
    until,
)


@pytest.fixture
async def proxy(db: Database) -> AsyncIterator[Proxy]:
    async with Proxy(db.url) as made:
        yield made


@pytest.fixture
async def fragile(proxy: Proxy) -> AsyncIterator[Engine]:
    """An engine whose connections go through the proxy."""
    engine = create_engine(proxy.url)
    yield engine
    await engine.dispose()


async def _stored(db: Database) -> set[UUID]:
    return {row["id"] for row in await db.rows("SELECT id FROM requests")}


async def test_a_commit_that_was_lost_wrote_nothing_and_its_keys_go(
    db: Database, proxy: Proxy, fragile: Engine
) -> None:
    intake = Intake(fragile, db.slots, db.keyring, max_queued_nodes=None)
    proxy.at_commit = "lose"
    answers = await asyncio.gather(*(intake.accept(db.new(str(n))) for n in range(3)), return_exceptions=True)
    assert all(isinstance(answer, CommitUnanswered) and "Idempotency-Key" in answer.remedy for answer in answers)
    assert await _stored(db) == set()
    # Still there: their outcome was unknown when the callers were answered.
    assert len(db.kept().keys()) == 3
    after = await intake.accept(db.new("after"))
    await intake.close()
    assert await _stored(db) == {after.request.id}
    assert await UnneededKeys(db.engine, db.keys).destroy_orphaned() == 3
    assert db.kept().keys() == {after.request.id}


async def test_a_commit_whose_answer_was_lost_keeps_its_keys_and_is_found_by_repeating(
    db: Database, proxy: Proxy, fragile: Engine
) -> None:
    intake = Intake(fragile, db.slots, db.keyring, max_queued_nodes=None)
    new = db.new("12", key="k")
    proxy.at_commit = "deliver"
    with pytest.raises(CommitUnanswered):
        await intake.accept(new)
    again = await intake.accept(new)
    await intake.close()
    assert (again.replayed, again.targets) == (True, new.targets)
    assert await _stored(db) == {again.request.id} == db.kept().keys()


async def test_while_a_commit_is_under_way_its_keys_are_kept(db: Database, proxy: Proxy, fragile: Engine) -> None:
    intake = Intake(fragile, db.slots, db.keyring, max_queued_nodes=None)
    proxy.at_commit = "delay"
    with pytest.raises(CommitUnanswered):
        await intake.accept(db.new("12", key="k"))
    [pending] = db.kept().keys()
    # The rows are not visible yet, and a later group looks for them.
    after = await intake.accept(db.new("after"))
    assert await _stored(db) == {after.request.id}
    assert db.kept().keys() == {pending, after.request.id}
    orphans = asyncio.create_task(UnneededKeys(db.engine, db.keys).destroy_orphaned())
    await until(lambda: is_waiting(db))
    proxy.release.set()
    assert await orphans == 0
    await intake.accept(db.new("last"))
    await intake.close()
    assert pending in await _stored(db)
    assert await _stored(db) == db.kept().keys()


async def test_an_unanswered_commit_is_distinguished_from_one_that_did_not_happen(
    db: Database, proxy: Proxy, fragile: Engine
) -> None:
    for action, version in (("lose", 0), ("deliver", 1)):
        proxy.at_commit = action
        with pytest.raises(CommitUnanswered):
            async with transaction(fragile) as conn:
                await PointerRepository(conn).advance(0, next_pointer(POINTER, 1))
        # Postgres still has to process what was delivered.
        await until(partial(_is_at, db, version))


@pytest.mark.parametrize("state", ["XX001", "XX002", "58P01"])
async def test_damage_that_postgres_meets_is_named_as_damage(db: Database, state: str) -> None:
    raised = f"DO $$ BEGIN RAISE EXCEPTION 'index x is broken' USING ERRCODE = '{state}'; END $$"
    with pytest.raises(DatabaseDamaged, match=f"damaged: index x is broken .SQLSTATE {state}"):
        async with transaction(db.engine) as connection:
            await connection.exec_driver_sql(raised)
    async with listen(db.engine) as connection:
        with pytest.raises(DatabaseDamaged, match=state):
            await connection.value(raised)


def test_a_connection_that_the_driver_gives_up_is_an_outage_and_a_wrong_setting_is_none() -> None:
    original = asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")
    dbapi = PGDialect_asyncpg.import_dbapi()  # type: ignore[no-untyped-call]  # SQLAlchemy gives it no types
    wrapped = dbapi.InternalClientError("as above")
    wrapped.__cause__ = original
    for outage in (original, DBAPIError(None, None, wrapped), asyncpg.InterfaceError("connection is closed")):
        assert is_outage(outage)
    for mistake in (asyncpg.exceptions.ClientConfigurationError("no"), asyncpg.exceptions.UndefinedTableError("no")):
        assert not is_outage(mistake)


async def _is_at(db: Database, version: int) -> bool:
    async with transaction(db.engine) as conn:
        pointer = await PointerRepository(conn).read(MODEL)
    return pointer is not None and pointer.version == version


async def test_through_an_outage_nothing_is_half_written_and_afterwards_everything_works(
    own_postgres: Embedded, tmp_path: Path
) -> None:
    url = own_postgres.start().database_url
    assert url is not None
    await migrate.upgrade(url)
    async with open_database(url, tmp_path) as db:
        before = await asyncio.gather(*(db.intake.accept(db.new(str(n))) for n in range(5)))
        async with listen(db.engine) as wakeup:
            await asyncio.to_thread(own_postgres.stop)
            refused = await asyncio.gather(
                *(db.intake.accept(db.new("x", key=f"k{n}")) for n in range(5)), return_exceptions=True
            )
            assert all(isinstance(answer, Unavailable) for answer in refused)
            with pytest.raises(Unavailable):
                async with transaction(db.engine) as conn:
                    await search(conn, AuditFilters(), None, 1)
            with pytest.raises(Unavailable):
                await wakeup.wait(20)
        with pytest.raises(Unavailable):
            async with listen(db.engine):
                raise AssertionError("listens to a database that is down")
        await asyncio.to_thread(own_postgres.start)
        # The pool still holds earlier connections; none of them fails a caller.
        after = await asyncio.gather(*(db.intake.accept(db.new(str(n))) for n in range(5)))
        await asyncio.gather(*(db.value("SELECT 1") for _ in range(10)))
        assert all(isinstance(answer, Accepted) for answer in after)
        assert await _stored(db) == accepted_ids([*before, *after]) == db.kept().keys()
