"""Limits of a database login beyond its work: each attack in SQL with that login."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from sqlalchemy import NullPool, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from service.access.api_keys import ApiKeyRepository
from service.db import locks, migrate
from service.db.engine import Engine, connection_to
from service.db.locks import Lock
from service.db.roles import API_ROLE, AUDIT_ROLE, UNLEARNER_ROLE
from service.db.transactions import transaction
from service.domain.scopes import Scope
from service.log.events import LogRepository
from service.requests.lookup import RequestRepository
from service.requests.moves import RequestMoves
from tests.support.service.db_harness import MODEL, Database, open_database
from tests.support.service.logins import logged_in, may

ROLES = (API_ROLE, UNLEARNER_ROLE, AUDIT_ROLE)
#: Columns of an unbounded type are limited by a constraint of their own, or by their domain.
UNBOUNDED = ("timestamp with time zone", "double precision", "text", "bytea", "jsonb", "text[]", "date", "interval")
#: A queued request, inserted manually with the api's login.
MADE_UP = (
    "INSERT INTO requests (id, model, kind, count, ciphertext, api_key_id, key_file, key_place)"
    f" SELECT gen_random_uuid(), '{MODEL}', 'node', {{}}, '\\x01', id, 7, 1 FROM api_keys"
)


@pytest.fixture
async def db(database_url: str, tmp_path: Path) -> AsyncIterator[Database]:
    # A copy lacks what belongs to a database rather than to its content.
    await migrate.upgrade(database_url)
    async with open_database(database_url, tmp_path) as database:
        yield database


async def refused(engine: Engine, statement: str, says: str, **values: object) -> None:
    """Assert that a statement is refused, at the latest at its commit."""
    with pytest.raises(DBAPIError, match=says):
        async with engine.begin() as conn:
            await conn.execute(text(statement), values)


async def relations(db: Database, kinds: str = "rpv") -> list[str]:
    found = await db.rows(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind::text = ANY(:kinds)"
        " ORDER BY relname",
        kinds=[*kinds],
    )
    return [row["relname"] for row in found]


async def failed(db: Database) -> UUID:
    request_id = await db.accept()
    async with transaction(db.engine) as conn:
        await RequestMoves(conn).mark_failed(request_id, "x")
    return request_id


async def test_every_function_looks_names_up_where_the_tables_are(db: Database) -> None:
    loose = await db.rows(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        " AND prosqlbody IS NULL AND NOT coalesce('search_path=public, pg_temp' = ANY(proconfig), false)"
    )
    assert loose == [], "pin it: ALTER FUNCTION … SET search_path = <schema>, pg_temp, as in r0001/functions.sql"


async def test_no_event_is_committed_without_a_leaf_whatever_its_writer_looks_names_up_in(db: Database) -> None:
    request_id = await db.accept()
    await db.rows("CREATE SCHEMA elsewhere")
    await db.rows("CREATE TABLE elsewhere.leaves AS SELECT generate_series(1, 1000)::bigint AS event_id")
    await db.rows("GRANT USAGE ON SCHEMA elsewhere TO PUBLIC")
    await db.rows("GRANT SELECT ON elsewhere.leaves TO PUBLIC")
    async with logged_in(db, UNLEARNER_ROLE) as engine:
        await refused(engine, "CREATE TEMPORARY TABLE leaves (event_id bigint)", "permission denied")
        async with engine.connect() as conn:
            await conn.execute(text("SET LOCAL search_path = elsewhere, public"))
            event = "INSERT INTO events (request_id, type, payload) VALUES (:id, 'failed', '{}')"
            await conn.execute(text(event), {"id": request_id})
            with pytest.raises(DBAPIError, match="has no leaf in the log"):
                await conn.commit()


async def test_no_login_has_a_right_to_the_database_or_a_schema_that_it_does_not_need(db: Database) -> None:
    for role in ROLES:
        async with logged_in(db, role) as engine, transaction(engine) as conn:
            rights = await conn.execute(
                text(
                    "SELECT 'database ' || p FROM unnest('{CONNECT,CREATE,TEMPORARY}'::text[]) p"
                    " WHERE has_database_privilege(session_user, current_database(), p)"
                    " UNION ALL SELECT nspname || ' ' || p FROM pg_namespace, unnest('{USAGE,CREATE}'::text[]) p"
                    " WHERE nspname !~ '^pg_' AND has_schema_privilege(session_user, pg_namespace.oid, p) ORDER BY 1"
                )
            )
            assert [*rights.scalars()] == ["database CONNECT", "information_schema USAGE", "public USAGE"]


async def test_the_transactions_of_every_login_are_limited(db: Database) -> None:
    for role in ROLES:
        async with logged_in(db, role) as own:
            # As a tool connects: Lethe's own connections limit themselves.
            _, arguments = connection_to(db.url)
            engine = create_async_engine(own.url, poolclass=NullPool, connect_args=arguments)
            async with engine.connect() as conn:
                for name in ("transaction_timeout", "idle_in_transaction_session_timeout"):
                    assert await conn.scalar(text(f"SHOW {name}")) == "1min", (role, name)


async def test_every_column_that_a_login_may_write_is_bounded(db: Database) -> None:
    unbounded = await db.rows(
        "SELECT DISTINCT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " CROSS JOIN unnest(CAST(:roles AS text[])) AS role"
        " WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped"
        " AND a.attgenerated = '' AND has_column_privilege(role, c.oid, a.attnum, 'INSERT, UPDATE')"
        " AND format_type(a.atttypid, NULL) = ANY(:types) AND NOT EXISTS (SELECT FROM pg_constraint k"
        " WHERE k.conrelid = c.oid AND a.attnum = ANY(k.conkey) AND k.contype IN ('c', 'f'))"
        " ORDER BY 1, 2",
        roles=list(ROLES),
        types=list(UNBOUNDED),
    )
    assert unbounded == [], "give it a CHECK, or, as a time, one between 1970 and 9000, as in r0001/bounds.sql"


async def test_every_time_is_one_that_a_driver_can_decode(db: Database) -> None:
    times = await db.rows(
        "SELECT attrelid::regclass::text AS of_table, attname FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid"
        " WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND atttypid = 'timestamptz'::regtype"
        " AND attgenerated = '' AND NOT attisdropped AND relname <> 'request_search' ORDER BY 1, 2"
    )
    assert {"of_table": "requests", "attname": "due_at"} in times
    for of_table, column in (row.values() for row in times):
        checks = await db.rows(
            "SELECT replace(substr(pg_get_constraintdef(k.oid), 6), :column, 'at') AS holds FROM pg_constraint k"
            " JOIN pg_attribute a ON a.attrelid = conrelid AND conkey = ARRAY[attnum]"
            " WHERE conrelid = CAST(:of_table AS regclass) AND contype = 'c' AND attname = :column",
            of_table=of_table,
            column=column,
        )
        for time in ("infinity", "-infinity", "200000-01-01", "9999-12-31 23:59:59+00", "0001-01-01 BC"):
            holds = [
                await db.value(f"SELECT {one['holds']} FROM (SELECT timestamptz '{time}' AS at) one") for one in checks
            ]
            assert False in holds, f"{of_table}.{column} takes {time}"


@pytest.mark.parametrize("until", ["200000-01-01", "infinity", "9999-12-31 23:59:59+00"])
async def test_a_deadline_that_no_calendar_has_is_refused_to_the_api_and_the_unlearner(
    db: Database, until: str
) -> None:
    request_id = await db.accept()
    async with logged_in(db, API_ROLE) as engine:
        extend = "SELECT request_extend(:id, :key, CAST(CAST(:until AS text) AS timestamptz), 'x')"
        await refused(engine, extend, "bounded", id=request_id, key=db.api_key_id, until=until)
        check = "INSERT INTO log_checks (api_key_id, size, against_size) VALUES (:key, 0, 0)"
        async with engine.begin() as conn:
            await conn.execute(text(check), {"key": db.api_key_id})
        await refused(engine, f"UPDATE log_checks SET checked_at = '{until}'", "permission denied")
    async with logged_in(db, UNLEARNER_ROLE) as engine:
        await refused(engine, f"UPDATE feed SET due_at = '{until}'", "bounded")
        await refused(engine, f"UPDATE requests SET taken_at = '{until}'", "bounded")
        await refused(engine, f"UPDATE pointers SET version = version + 1, moved_at = '{until}'", "bounded|folder")
    async with transaction(db.engine) as conn:
        assert [one.id for one in await RequestRepository(conn).open(MODEL, limit=5)] == [request_id]
    assert await db.value("SELECT checked_at <= now() FROM log_checks")
    assert await db.rows("SELECT * FROM decisions") == []


async def test_a_request_that_would_fill_the_queue_of_everybody_cannot_be_made_up(db: Database) -> None:
    async with logged_in(db, API_ROLE) as engine:
        await refused(engine, MADE_UP.format(60_000_000), "requests_count_most")


LONG = "repeat('x', 18000000)"
MADE_OF = "(id, model, kind, api_key_id, count, {}) SELECT gen_random_uuid(), 'tiny', 'node', id, 1, {} FROM api_keys"


@pytest.mark.ci
@pytest.mark.parametrize(
    "added",
    [
        f"outbox (request_id, model) SELECT id, {LONG} FROM requests",
        f"drills (request_id, model, cohort) SELECT id, {LONG}, 1 FROM requests",
        f"refused_requests (model, api_key_id, kind, named, reason) SELECT 'm', id, 'node', 1, {LONG} FROM api_keys",
        f"refused_requests (model, api_key_id, kind, named, reason) SELECT {LONG}, id, 'node', 1, 'x' FROM api_keys",
        f"used_salts (hash) SELECT convert_to({LONG}, 'UTF8')",
        "requests " + MADE_OF.format("reference", LONG),
        "requests " + MADE_OF.format("idempotency_key, body_digest", f"{LONG}, sha256('')"),
        "requests " + MADE_OF.format("ciphertext", f"convert_to({LONG}, 'UTF8')"),
    ],
)
async def test_what_the_api_adds_is_as_long_as_a_request_makes_it(db: Database, added: str) -> None:
    await db.accept()
    await db.rows("DELETE FROM outbox")
    async with logged_in(db, API_ROLE) as engine:
        await refused(engine, f"INSERT INTO {added}", "violates check constraint")


async def test_a_decision_needs_a_valid_key_with_the_scopes_of_its_route_and_a_reason_of_its_length(
    db: Database,
) -> None:
    request_id, queued = await failed(db), await db.accept()
    keys: dict[tuple[Scope, ...], UUID] = {}
    async with transaction(db.engine) as conn:
        repository = ApiKeyRepository(conn)
        for n, scopes in enumerate([(Scope.DELETIONS_WRITE,), (Scope.AUDIT_READ,), (Scope.DELETIONS_READ,)]):
            keys[scopes] = (await repository.create(uuid4(), f"k{n}", list(scopes), bytes([n + 1]) * 32)).id
        revoked = (await repository.create(uuid4(), "revoked", list(Scope), b"r" * 32)).id
        await repository.revoke(revoked)
    wrong: Sequence[object] = [*keys.values(), revoked, uuid4(), None]
    calls = {
        "request_handle(:id, :key, 'x')": wrong,
        "request_extend(:queued, :key, now() + interval '1 year', 'x')": wrong,
        "request_hold(:queued, :key, 'x')": wrong,
        "request_release(:queued, :key)": wrong,
        "request_retry(:id, :key)": wrong,
        "request_cancel(:queued, :key)": [one for one in wrong if one != keys[Scope.DELETIONS_WRITE,]],
    }
    before = await db.rows("SELECT * FROM requests ORDER BY id")
    async with logged_in(db, API_ROLE) as engine:
        for call, asking in calls.items():
            for key in asking:
                async with engine.begin() as conn:
                    values = {"id": request_id, "queued": queued, "key": key}
                    held = {name: value for name, value in values.items() if f":{name}" in call}
                    assert await conn.scalar(text(f"SELECT {call.replace(':key', 'CAST(:key AS uuid)')}"), held) is None
        # It may not cancel another's request.
        async with engine.begin() as conn:
            cancel = text("SELECT request_cancel(:id, :key)")
            assert await conn.scalar(cancel, {"id": queued, "key": keys[Scope.DELETIONS_WRITE,]}) is False
        for function in ("request_handle(:id, :key, {})", "request_extend(:id, :key, now() + interval '1 year', {})"):
            long = function.format("repeat('x', 18000000)")
            await refused(engine, f"SELECT {long}", "decisions_reason_length", id=request_id, key=db.api_key_id)
    assert await db.rows("SELECT * FROM requests ORDER BY id") == before
    assert await db.rows("SELECT * FROM decisions") == []


async def test_a_subject_of_the_issuer_has_at_most_the_scopes_of_the_settings_and_is_no_key(db: Database) -> None:
    record = "SELECT id, scopes, expires_at <= now() + interval '1 day' AS ends FROM oidc_subject(:hash, :scopes)"
    subject = {"hash": b"s" * 32, "scopes": ["audit:read"]}
    async with logged_in(db, API_ROLE) as engine:
        # No start with an issuer has allowed a scope.
        await refused(engine, record, "the issuer cannot grant these scopes", **subject)
        await db.rows("UPDATE service_settings SET oidc_scopes = '{audit:read,deletions:write}'")
        await refused(engine, record, "cannot grant", hash=b"s" * 32, scopes=["audit:read", "graph:write"])
        await refused(engine, record, "cannot grant", hash=b"s" * 32, scopes=None)
        await refused(engine, record, "api_keys_scopes_check", hash=b"s" * 32, scopes=[])
        found = []
        for scopes in (["audit:read"], ["deletions:write"]):
            async with engine.begin() as conn:
                found.append((await conn.execute(text(record), {**subject, "scopes": scopes})).one())
        assert found[0].id == found[1].id
        assert [one.scopes for one in found] == [["audit:read"], ["audit:read", "deletions:write"]]
        assert all(one.ends for one in found)
        # Once it was invalid, its earlier scopes are gone.
        await db.rows("UPDATE api_keys SET expires_at = now() - interval '1 hour' WHERE is_subject")
        async with engine.begin() as conn:
            assert (await conn.execute(text(record), subject)).one().scopes == ["audit:read"]
        async with transaction(db.engine) as conn:
            keys = ApiKeyRepository(conn)
            # A text with this hash would not authenticate.
            assert await keys.find_by_hash(b"s" * 32) is None
            assert await keys.subject_id(b"s" * 32) == found[0].id
            await keys.create(uuid4(), "a key", [Scope.AUDIT_READ], b"k" * 32)
            await keys.revoke(found[0].id)
        before = await db.rows("SELECT * FROM api_keys ORDER BY id")
        for of in (b"s" * 32, b"k" * 32):
            async with engine.begin() as conn:
                assert (await conn.execute(text(record), {**subject, "hash": of})).all() == []
        assert await db.rows("SELECT * FROM api_keys ORDER BY id") == before


async def test_who_may_only_read_holds_nobody_up(db: Database) -> None:
    # Lethe's former lock numbers, and those of tables and rows: this login may take none of them.
    once = (0x6C6F67, 0x696E74616B65, 0x66656564, 0x666F6C64, 0x6472696C6C, 0x7369676E696E, 0x6C65746865)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(logged_in(db, AUDIT_ROLE))
        conn = await stack.enter_async_context(engine.connect())
        for relation in await relations(db):
            for mode in ("ROW SHARE", "ROW EXCLUSIVE", "SHARE ROW EXCLUSIVE", "ACCESS EXCLUSIVE"):
                assert not await may(conn, f"LOCK TABLE {relation} IN {mode} MODE NOWAIT"), (relation, mode)
            assert not await may(conn, f"SELECT FROM {relation} FOR KEY SHARE NOWAIT"), relation
        for key in once:
            await conn.execute(text("SELECT pg_advisory_lock(:key)"), {"key": key})
        await conn.execute(text("SELECT * FROM audit_export"))
        request_id = await db.accept()
        await db.applied([request_id])
        await migrate.upgrade(db.url)
    async with transaction(db.engine) as conn:
        assert await LogRepository(conn).size() > 0


#: Tables that a login can lock against others' writes: those it removes rows from, including its locks.
HELD = {
    API_ROLE: ["lock_drills", "lock_sessions", "sessions"],
    UNLEARNER_ROLE: [
        *("lock_feed", "lock_intake", "lock_log", "lock_totals"),
        *("outbox", "queued_joins", "webhook_deliveries"),
    ],
    AUDIT_ROLE: [],
}
#: Tables whose rows it can lock, because it changes them.
ROWS_HELD = {
    API_ROLE: ["api_key_uses", "log_checks", "sessions"],
    UNLEARNER_ROLE: [
        *("decisions", "feed", "imports", "leases", "outbox", "pointers", "recoveries", "requests"),
        *("tombstones", "versions", "webhook_deliveries", "webhook_endpoints"),
    ],
    AUDIT_ROLE: [],
}


@pytest.mark.parametrize("role", ROLES)
async def test_a_login_can_lock_what_its_work_needs_and_nothing_else(db: Database, role: str) -> None:
    async with logged_in(db, role) as engine, engine.connect() as conn:
        tables = await relations(db)
        held = [one for one in tables if await may(conn, f"LOCK TABLE {one} IN SHARE ROW EXCLUSIVE MODE NOWAIT")]
        strongest = [one for one in tables if await may(conn, f"LOCK TABLE {one} IN ACCESS EXCLUSIVE MODE NOWAIT")]
        rows = [one for one in await relations(db, "rp") if await may(conn, f"SELECT FROM {one} FOR UPDATE NOWAIT")]
    assert (held, strongest, rows) == (HELD[role], HELD[role], ROWS_HELD[role])


async def test_a_lock_keeps_others_out_and_is_shared_where_it_is_to_be(db: Database) -> None:
    async with db.engine.connect() as first, db.engine.connect() as second:
        for lock in Lock:
            await locks.take(first, lock)
            assert await locks.take_if_free(first, lock)
            assert not await locks.take_if_free(second, lock)
            # A failed attempt does not lose the caller's transaction.
            assert await second.scalar(text("SELECT 1")) == 1
            await first.rollback()
            assert await locks.take_if_free(second, lock)
            await second.rollback()
        await locks.share(first, Lock.INTAKE)
        await locks.share(second, Lock.INTAKE)
        await second.rollback()
        assert not await locks.take_if_free(second, Lock.INTAKE)
    assert [one for one in await relations(db) if one.startswith("lock_")] == sorted(Lock)
    for lock in Lock:
        with pytest.raises(DBAPIError, match="violates check constraint"):
            await db.rows(f"INSERT INTO {lock} DEFAULT VALUES")
