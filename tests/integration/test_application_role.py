"""What the role that the service works as may do, tried on every table and column; its work gets by with it."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from db_harness import MODEL, Database, made, next_pointer, open_database
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db import lease as leases
from service.db import roles
from service.db.api_keys import ApiKeyRepository
from service.db.engine import Engine, create_engine
from service.db.pointers import PointerRepository
from service.db.recoveries import RecoveryRepository
from service.db.tombstones import TombstoneRepository
from service.db.transactions import fenced_transaction, transaction
from service.db.vault_keys import VaultKeyRepository, accept_lost, open_keyring
from service.db.versions import VersionRepository
from service.domain.records import Tombstone
from service.domain.states import Cause, RequestKind, Scope
from service.domain.versions import Recovery
from service.vault.keyring import Keyring
from tests.unit.command_line import CommandLine

#: Table -> what may be done to it besides reading it; `change` is followed by the columns that may be changed.
ALLOWED = {
    "alembic_version": "",
    "api_keys": "add change revoked_at",
    "audit_counts": "",
    "audit_times": "",
    "batches": "add",
    "checkpoints": "add",
    "drills": "add",
    "events": "add",
    "imports": "add change finished_at refusal status",
    "leases": "add change expires_at fencing holder",
    "leaves": "add",
    "log_keys": "add",
    "log_nodes": "add",
    "outbox": "add remove change created_at",
    "pointers": "add change digest fencing folder moved_at version weights_sha256",
    "recoveries": "add change requests_failed",
    "refused_requests": "add",
    "request_audits": "add",
    "request_search": "",
    "requests": (
        "add change already_deleted_by applied_at batch_id cancelled_at ciphertext completed_at "
        "explanation failed_at failure guarantee key_file key_place reference_commitment repair status "
        "subject_commitments swept_at "
        "taken_at"
    ),
    "tombstone_keys": "add",
    "tombstones": "add",
    "vault_keys": "add",
    "versions": "add change durations_ms finished_at repair repair_version span_residual",
}


@pytest.fixture
async def db(database_url: str, tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(database_url, tmp_path) as database:
        yield database


@asynccontextmanager
async def application(db: Database) -> AsyncIterator[Engine]:
    """An engine that works as the role."""
    engine = create_engine(db.url, pool_size=1, role=roles.APPLICATION_ROLE)
    try:
        yield engine
    finally:
        await engine.dispose()


async def may(conn: AsyncConnection, statement: str) -> bool:
    """Whether a statement, which is undone, is refused for anything but the lack of a right, or not at all."""
    try:
        await conn.execute(text(statement))
    except DBAPIError as error:
        refusal = str(error.orig)
        return "permission denied" not in refusal and "must be owner" not in refusal
    finally:
        await conn.rollback()
    return True


async def test_the_role_may_do_what_is_written_here_and_nothing_else(db: Database) -> None:
    tables = await db.rows(
        "SELECT relname, ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0) AS columns"
        " FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') ORDER BY relname"
    )
    found = {}
    async with application(db) as engine, engine.connect() as conn:
        for table, columns in (row.values() for row in tables):
            assert await may(conn, f"SELECT * FROM {table} LIMIT 0"), f"{table}: say in service/db/roles.py what it may"
            changed = [
                column
                for column in sorted(columns)
                if await may(conn, f'UPDATE {table} SET "{column}" = DEFAULT WHERE false')
            ]
            done = [
                *(["add"] if await may(conn, f"INSERT INTO {table} DEFAULT VALUES") else []),
                *(["remove"] if await may(conn, f"DELETE FROM {table} WHERE false") else []),
                *(["change", *changed] if changed else []),
            ]
            found[table] = " ".join(done)
            for statement in (
                f"TRUNCATE {table} CASCADE",
                f"CREATE TRIGGER own BEFORE INSERT ON {table} EXECUTE FUNCTION suppress_redundant_updates_trigger()",
                f"ALTER TABLE {table} DISABLE TRIGGER ALL",
                f"ALTER TABLE {table} OWNER TO CURRENT_USER",
                f"DROP TABLE {table} CASCADE",
            ):
                assert not await may(conn, statement), statement
        for statement in ("CREATE TABLE own (n int)", "CREATE FUNCTION own() RETURNS int LANGUAGE sql AS 'SELECT 1'"):
            assert not await may(conn, statement)
    assert found == ALLOWED


async def test_the_role_calls_these_functions_with_the_owner_s_rights_and_no_others(db: Database) -> None:
    query = (
        "SELECT oid::regprocedure::text AS name FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosecdef"
        " AND has_function_privilege(:role, oid, 'EXECUTE') ORDER BY 1"
    )
    found = [row["name"] for row in await db.rows(query, role=roles.APPLICATION_ROLE)]
    assert found == ["audit_fold()", "vault_key_replace(text,bytea)"]


async def test_a_key_cannot_be_given_scopes_nor_be_made_valid_again(db: Database) -> None:
    async with application(db) as engine:
        async with transaction(engine) as conn:
            made = await ApiKeyRepository(conn).create(uuid4(), "shop", [Scope.PREDICTIONS_READ], b"k" * 32)
            revoked = await ApiKeyRepository(conn).revoke(made.id)
            # A second time changes nothing.
            assert await ApiKeyRepository(conn).revoke(made.id) == revoked
        for statement, refusal in (
            ("UPDATE api_keys SET scopes = '{audit:read}'", "permission denied"),
            ("UPDATE api_keys SET revoked_at = NULL", "a revoked key stays revoked"),
            ("UPDATE api_keys SET revoked_at = now() + interval '1 year'", "a revoked key stays revoked"),
        ):
            with pytest.raises(DBAPIError, match=refusal):
                async with engine.begin() as conn:
                    await conn.execute(text(statement))
    assert await db.value("SELECT scopes FROM api_keys WHERE name = 'shop'") == ["predictions:read"]


async def test_a_lost_pepper_is_replaced_by_that_role_and_leaves_no_key_valid(db: Database, tmp_path: Path) -> None:
    keys = tmp_path / "vault"
    async with application(db) as engine:
        await open_keyring(engine, keys)
        (keys / "api-pepper.key").unlink()
        assert await accept_lost(engine, keys, ["api-pepper"]) == 1
        assert await accept_lost(engine, keys, ["api-pepper", "body"]) == 0
        identities = Keyring.open(keys, known=set()).identities()
        async with transaction(engine) as conn:
            assert await VaultKeyRepository(conn).registered() == identities
        with pytest.raises(DBAPIError, match="nothing can take the place of the key tombstone-1"):
            async with engine.begin() as conn:
                await conn.execute(text("SELECT vault_key_replace('tombstone-1', decode(repeat('00', 16), 'hex'))"))
    assert await db.value("SELECT count(*) FROM api_keys WHERE revoked_at IS NULL") == 0


async def test_a_version_tombstones_and_a_recovery_are_committed_by_that_role(db: Database) -> None:
    request_id = await db.accept("1")
    async with application(db) as engine:
        lease = await leases.acquire(engine, MODEL, "tests", 60.0)
        assert lease is not None
        async with fenced_transaction(engine, lease) as conn:
            pointers = PointerRepository(conn)
            pointer = await pointers.read(MODEL)
            assert pointer is not None
            following = next_pointer(pointer, lease.fencing)
            await pointers.advance(pointer.version, following)
            await pointers.replace(next_pointer(following, lease.fencing))
            version = made(2, cause=Cause.RECOVERY)
            await VersionRepository(conn).insert(version)
            await RecoveryRepository(conn).insert(Recovery(version, "0-0", "0-0", 0))
            tombstones = TombstoneRepository(conn)
            for digest, by in ((b"t" * 32, request_id), (b"u" * 32, None)):
                tombstone = Tombstone(RequestKind.NODE, digest, 1, by)
                await tombstones.insert(MODEL, [tombstone], {1: b"f" * 16}, recovery=version.id)
            assert await tombstones.find([b"t" * 32, b"u" * 32]) == {b"t" * 32: request_id, b"u" * 32: None}
            assert await RecoveryRepository(conn).is_open(MODEL)
            await RecoveryRepository(conn).finish(MODEL, requests_failed=0)
            assert not await RecoveryRepository(conn).is_open(MODEL)
        await leases.release(engine, lease)


def test_keys_are_made_and_revoked_with_a_login_of_that_role(
    database_url: str,
    redis_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the operator does it whose service has a login of its own."""
    parsed = make_url(database_url)
    login = f"{parsed.database}_keys"
    asyncio.run(execute(database_url, f"CREATE ROLE {login} LOGIN PASSWORD 'secret' IN ROLE {roles.APPLICATION_ROLE}"))
    monkeypatch.setenv("DATABASE_URL", parsed.set(username=login, password="secret").render_as_string(False))
    monkeypatch.setenv("REDIS_URL", redis_url)
    try:
        run = CommandLine(capsys)
        made = run("keys", "create", "shop", "--scope", "predictions:read", "--home", tmp_path)
        assert made.status == 0, made.stderr
        [key_id] = re.findall(r"Key (\S+) for shop", made.stderr)
        revoked = run("keys", "revoke", key_id, "--home", tmp_path)
        assert (revoked.status, revoked.stdout.split()) == (0, [key_id, "shop", "revoked"])
    finally:
        asyncio.run(execute(database_url, f"DROP ROLE {login}"))


async def execute(url: str, statement: str) -> None:
    engine = create_engine(url, pool_size=1)
    async with engine.begin() as conn:
        await conn.execute(text(statement))
    await engine.dispose()
