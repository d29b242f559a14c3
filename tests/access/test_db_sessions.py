"""Sessions of the dashboard, and attempts to sign in, as any process that uses the database sees them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from service.access.api_keys import ApiKeyRepository
from service.access.sessions import IDLE, LIFETIME, MAX_SESSIONS, Session, SessionRepository
from service.access.sign_ins import MOST_IN_VAIN, SPAN, SignInRepository
from service.db.engine import Engine, create_engine
from service.db.transactions import transaction
from service.domain.scopes import Scope
from service.errors import TooManyAttempts
from tests.support.service.db_harness import Database, open_database

ADDRESS, OTHER = b"a" * 32, b"b" * 32
SECOND = timedelta(seconds=1)


@pytest.fixture
async def db(database_url: str, tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(database_url, tmp_path) as database:
        yield database


@pytest.fixture
async def other(db: Database) -> AsyncIterator[Engine]:
    """As another process has one."""
    engine = create_engine(db.url, pool_size=2)
    yield engine
    await engine.dispose()


async def start(engine: Engine, key_id: UUID) -> str:
    async with transaction(engine) as conn:
        return await SessionRepository(conn).start(key_id)


async def find(engine: Engine, token: str) -> Session | None:
    async with transaction(engine) as conn:
        return await SessionRepository(conn).find(token)


async def attempt(engine: Engine, address: bytes = ADDRESS) -> int:
    async with transaction(engine) as conn:
        return await SignInRepository(conn).begin(address)


async def pass_time(db: Database, span: timedelta) -> None:
    """As if everything had been `span` ago."""
    for column in ("sessions.started_at", "sessions.seen_at", "sign_ins.begun_at"):
        table, name = column.split(".")
        await db.rows(f"UPDATE {table} SET {name} = {name} - CAST(:span AS interval)", span=span)


async def test_a_session_lasts_while_it_is_used_and_no_longer_than_its_lifetime(db: Database) -> None:
    token = await start(db.engine, db.api_key_id)
    for _ in range(LIFETIME // (IDLE - SECOND)):
        await pass_time(db, IDLE - SECOND)
        found = await find(db.engine, token)
        assert found is not None
        assert found.key.id == db.api_key_id
    await pass_time(db, LIFETIME % (IDLE - SECOND) + SECOND)
    assert await find(db.engine, token) is None


async def test_a_session_that_is_not_used_ends(db: Database) -> None:
    token = await start(db.engine, db.api_key_id)
    await pass_time(db, IDLE + SECOND)
    assert await find(db.engine, token) is None


async def test_looking_again_within_a_minute_writes_nothing(db: Database) -> None:
    token = await start(db.engine, db.api_key_id)
    row = await db.value("SELECT ctid::text FROM sessions")
    await find(db.engine, token)
    assert await db.value("SELECT ctid::text FROM sessions") == row
    await pass_time(db, timedelta(minutes=2))
    await find(db.engine, token)
    assert await db.value("SELECT seen_at > now() - interval '1 minute' FROM sessions") is True


async def test_a_session_holds_in_every_process_and_ends_in_every_process(db: Database, other: Engine) -> None:
    token = await start(db.engine, db.api_key_id)
    kept = await start(other, db.api_key_id)
    found = await find(other, token)
    assert found is not None
    assert found == await find(db.engine, token)
    async with transaction(other) as conn:
        await SessionRepository(conn).end(token)
        await SessionRepository(conn).end("no such token")
    assert await find(db.engine, token) is None
    assert await find(db.engine, kept) is not None
    for nothing in ("", "\udc80", kept[:-1]):
        assert await find(db.engine, nothing) is None


async def test_a_session_ends_with_its_key_and_others_do_not(db: Database, other: Engine) -> None:
    kept, key_id = await start(db.engine, db.api_key_id), uuid4()
    async with transaction(db.engine) as conn:
        await ApiKeyRepository(conn).create(key_id, "gone", [Scope.AUDIT_READ], b"g" * 32)
    token = await start(db.engine, key_id)
    async with transaction(other) as conn:
        await ApiKeyRepository(conn).revoke(key_id)
    assert await find(db.engine, token) is None
    assert await find(db.engine, kept) is not None
    # What ended is gone with the next beginning.
    await start(db.engine, db.api_key_id)
    assert await db.value("SELECT count(*) FROM sessions WHERE key_id = :key", key=key_id) == 0


async def test_a_form_belongs_to_one_session_and_nothing_stored_tells_its_token(db: Database) -> None:
    tokens = [await start(db.engine, db.api_key_id) for _ in range(2)]
    forms = {found.form_token for token in tokens if (found := await find(db.engine, token))}
    assert len(forms) == 2
    stored = await db.rows("SELECT * FROM sessions")
    assert {row["token_hash"] for row in stored} == {hashlib.sha256(token.encode()).digest() for token in tokens}
    assert not any(value in (*forms, *tokens) for row in stored for value in row.values())


async def test_there_are_never_more_sessions_than_allowed_and_the_oldest_ends(db: Database, other: Engine) -> None:
    await db.rows(
        "INSERT INTO sessions SELECT sha256(n::text::bytea), :key, now() - interval '1 hour', now()"
        " FROM generate_series(1, :most) n",
        key=db.api_key_id,
        most=MAX_SESSIONS - 2,
    )
    tokens = [await start(db.engine, db.api_key_id) for _ in range(2)]
    await asyncio.gather(*(start(engine, db.api_key_id) for engine in (db.engine, other) * 3))
    assert await db.value("SELECT count(*) FROM sessions") == MAX_SESSIONS
    assert all([await find(db.engine, token) for token in tokens])


async def test_attempts_in_vain_are_counted_for_all_processes_together(db: Database, other: Engine) -> None:
    begun = await asyncio.gather(
        *(attempt(engine) for engine in (db.engine, other) * MOST_IN_VAIN), return_exceptions=True
    )
    assert sum(isinstance(one, int) for one in begun) == MOST_IN_VAIN
    [refused] = {type(one) for one in begun if not isinstance(one, int)}
    assert refused is TooManyAttempts
    assert await attempt(other, OTHER)


async def test_whoever_has_waited_may_try_again_as_soon_as_the_first_attempt_is_long_ago(db: Database) -> None:
    await attempt(db.engine)
    await pass_time(db, SPAN / 2)
    for _ in range(MOST_IN_VAIN - 1):
        await attempt(db.engine)
    with pytest.raises(TooManyAttempts) as refusal:
        await attempt(db.engine)
    wait = timedelta(seconds=int(refusal.value.extra["retry_after"]))
    assert timedelta(0) < wait <= SPAN / 2 + SECOND
    await pass_time(db, wait)
    await attempt(db.engine)
    with pytest.raises(TooManyAttempts):
        await attempt(db.engine)
    await pass_time(db, SPAN)
    await attempt(db.engine, OTHER)
    assert await db.value("SELECT count(*) FROM sign_ins") == 1


async def test_an_attempt_that_succeeds_is_not_counted(db: Database) -> None:
    for _ in range(MOST_IN_VAIN + 1):
        number = await attempt(db.engine)
        async with transaction(db.engine) as conn:
            await SignInRepository(conn).succeeded(number)
    assert await db.value("SELECT count(*) FROM sign_ins") == 0
