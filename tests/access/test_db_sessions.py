"""Dashboard sessions, as seen by any process that uses the database."""

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import timedelta
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from service.access.api_keys import ApiKeyRepository
from service.access.keyring import Keyring
from service.access.sessions import IDLE, LIFETIME, MAX_SESSIONS, Session, SessionRepository
from service.db.engine import Engine, create_engine
from service.db.transactions import transaction
from service.domain.scopes import Scope
from tests.support.service.db_harness import Database

#: More than passes on a starved machine between two steps of a test.
WHILE = timedelta(minutes=10)
KEYRING = Keyring(Path("keys"), {}, api_pepper=b"p" * 32, body_key=b"b" * 32, cursor_key=b"c" * 32)


@pytest.fixture
async def other(db: Database) -> AsyncIterator[Engine]:
    """Another process' engine."""
    engine = create_engine(db.url, pool_size=2)
    yield engine
    await engine.dispose()


async def start(engine: Engine, key_id: UUID) -> str:
    async with transaction(engine) as conn:
        return await SessionRepository(conn, KEYRING).start(key_id)


async def find(engine: Engine, token: str) -> Session | None:
    async with transaction(engine) as conn:
        return await SessionRepository(conn, KEYRING).find(token)


async def pass_time(db: Database, span: timedelta) -> None:
    """Shift everything `span` into the past."""
    earlier = "started_at = started_at - CAST(:span AS interval), seen_at = seen_at - CAST(:span AS interval)"
    await db.rows(f"UPDATE sessions SET {earlier}", span=span)


async def test_a_session_lasts_while_it_is_used_and_no_longer_than_its_lifetime(db: Database) -> None:
    token = await start(db.engine, db.api_key_id)
    for _ in range(LIFETIME // (IDLE - WHILE)):
        await pass_time(db, IDLE - WHILE)
        found = await find(db.engine, token)
        assert found is not None
        assert found.key.id == db.api_key_id
    await pass_time(db, LIFETIME % (IDLE - WHILE) + WHILE)
    assert await find(db.engine, token) is None


async def test_a_session_that_is_not_used_ends(db: Database) -> None:
    token = await start(db.engine, db.api_key_id)
    await pass_time(db, IDLE)
    assert await find(db.engine, token) is None


async def test_a_session_holds_in_every_process_and_ends_in_every_process(db: Database, other: Engine) -> None:
    token = await start(db.engine, db.api_key_id)
    kept = await start(other, db.api_key_id)
    found = await find(other, token)
    assert found is not None
    assert found == await find(db.engine, token)
    async with transaction(other) as conn:
        await SessionRepository(conn, KEYRING).end(token)
        await SessionRepository(conn, KEYRING).end("no such token")
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
    # The next session's start removes ended ones.
    await start(db.engine, db.api_key_id)
    assert await db.value("SELECT count(*) FROM sessions WHERE key_id = :key", key=key_id) == 0


def granted_by(rows: dict[str, frozenset[Scope]], grant_ids: Collection[str]) -> frozenset[Scope]:
    return frozenset(scope for row, scopes in rows.items() if row in grant_ids for scope in scopes)


async def test_a_session_of_a_subject_has_the_scopes_of_its_token_that_its_rows_still_grant(db: Database) -> None:
    audit, delete, predict = Scope.AUDIT_READ, Scope.DELETIONS_WRITE, Scope.PREDICTIONS_READ
    await db.rows("UPDATE service_settings SET oidc_scopes = '{audit:read,deletions:write,predictions:read}'")
    async with transaction(db.engine) as conn:
        subject = await ApiKeyRepository(conn).record_subject(b"s" * 32, [audit, delete, predict])
        assert subject is not None
        token = await SessionRepository(conn, KEYRING).start(subject.id, [audit, delete], ["row1", "row2"])
        for rows, kept in (
            ({"row1": frozenset({audit}), "row2": frozenset({delete})}, {audit, delete}),
            ({"row1": frozenset({audit, predict})}, {audit}),
            ({"row3": frozenset({audit, delete})}, set()),
        ):
            found = await SessionRepository(conn, KEYRING).find(token, partial(granted_by, rows))
            assert found is not None
            assert found.key.scopes == kept
            assert all(isinstance(scope, Scope) for scope in found.key.scopes)
    for ended in (token, await start(db.engine, subject.id)):
        without_issuer = await find(db.engine, ended)
        assert without_issuer is not None
        assert without_issuer.key.scopes == frozenset()


async def test_a_form_belongs_to_one_session_and_nothing_stored_reveals_its_token(db: Database) -> None:
    tokens = [await start(db.engine, db.api_key_id) for _ in range(2)]
    forms = {found.form_token for token in tokens if (found := await find(db.engine, token))}
    assert len(forms) == 2
    stored = await db.rows("SELECT * FROM sessions")
    assert {row["token_hash"] for row in stored} == {KEYRING.session_hash(token) for token in tokens}
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


@pytest.mark.parametrize("token", ["x", "{key}.x"])
async def test_a_row_that_a_login_of_the_database_makes_is_no_session(db: Database, token: str) -> None:
    chosen = token.format(key=db.api_key_id.hex)
    add = "INSERT INTO sessions (token_hash, key_id) VALUES (sha256(:token), :key)"
    await db.rows(add, token=chosen.encode(), key=db.api_key_id)
    assert await find(db.engine, chosen) is None


async def test_the_row_of_a_session_that_is_given_to_another_key_is_no_session(db: Database) -> None:
    key_id = uuid4()
    async with transaction(db.engine) as conn:
        await ApiKeyRepository(conn).create(key_id, "visitor", [Scope.AUDIT_READ], b"v" * 32)
    token = await start(db.engine, key_id)
    await db.rows("UPDATE sessions SET key_id = :key", key=db.api_key_id)
    assert await find(db.engine, token) is None
