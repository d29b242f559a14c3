"""Rights of each process in the database, tried with its own login on every table and column."""

from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError

from service.access.api_keys import ApiKeyRepository
from service.access.keyring import Keyring
from service.db import lease as leases
from service.db import roles, schema
from service.db.roles import API_ROLE, UNLEARNER_ROLE
from service.db.transactions import fenced_transaction, transaction
from service.domain.kinds import RequestKind
from service.domain.records import Tombstone
from service.domain.scopes import Scope
from service.domain.states import Cause
from service.domain.versions import Recovery
from service.errors import ConfigurationError, Conflict, NotFound, Unauthenticated
from service.predictions.version_rows import PointerRepository, VersionRepository
from service.processes.key_folder import VaultKeyRepository, accept_lost, open_keyring
from service.reports.summary import fold
from service.requests.moves import RequestMoves
from service.requests.tombstones import TombstoneRepository
from service.settings import Settings
from service.unlearner.causes import RecoveryRepository
from tests.support.service.db_harness import MODEL, Database, Said, made, next_pointer
from tests.support.service.logins import logged_in, may

_READ, _ADD = "read", "read, add *"
#: Table -> the rights of an api process and of the unlearner, with the columns inserted or changed.
ALLOWED: dict[str, tuple[str, str]] = {
    "alembic_version": (_READ, _READ),
    "api_key_uses": ("read, add api_key_id, change used_at", ""),
    "api_keys": (_READ, _READ),
    "audit_counts": (_READ, _READ),
    "audit_times": (_READ, _READ),
    "batches": (_READ, _ADD),
    "checkpoints": (_READ, _ADD),
    "decisions": (_READ, "read, change event_id"),
    "drills": ("read, add cohort model request_id", _READ),
    "events": (_READ, _ADD),
    "feed": (_READ, "read, add api_key_id due_at milestone request_id status, change due_at place"),
    "imports": (_READ, "read, change finished_at refusal status"),
    "leases": (
        _READ,
        "read, add *, change checks device expires_at failing_since failures fencing held_since holder home phase "
        "reason repair_progress served_at serving_since",
    ),
    "leaves": (_READ, _ADD),
    "log_keys": (_READ, _ADD),
    "log_nodes": (_READ, _ADD),
    "queued_joins": ("read, add *", "read, remove"),
    "outbox": ("read, add model request_id traceparent", "read, add model request_id, change created_at, remove"),
    "pointers": (_READ, "read, add *, change digest fencing folder moved_at version weights_sha256"),
    "recoveries": (_READ, "read, add *, change requests_failed"),
    "refused_requests": ("read, add api_key_id kind model named reason", _READ),
    "request_audits": (_READ, _ADD),
    "request_search": (_READ, _READ),
    "requests": (
        "read, add api_key_id body_digest ciphertext count id idempotency_key key_file key_place kind model reference "
        "reference_commitment subject_commitments voucher",
        "read, change already_deleted_by applied_at batch_id ciphertext completed_at explanation failed_at "
        "failure guarantee handled_at handled_by key_file key_place repair status swept_at taken_at "
        "waits_for",
    ),
    "lock_drills": ("read, remove", ""),
    "lock_feed": ("", "read, remove"),
    "lock_intake": (_READ, "read, remove"),
    "lock_log": ("", "read, remove"),
    "lock_sessions": ("read, remove", ""),
    "lock_totals": ("", "read, remove"),
    "log_checks": ("read, add against_size api_key_id size, change against_size size", _READ),
    "service_settings": (_READ, _READ),
    "sessions": ("read, add key_id token_hash, change seen_at, remove", ""),
    "tombstone_keys": (_READ, _ADD),
    "tombstones": (_READ, "read, add *, change recovery_id rejoined_by request_id"),
    "used_salts": (_ADD, ""),
    "vault_keys": (_READ, _ADD),
    "versions": (_READ, "read, add *, change durations_ms finished_at repair repair_version span_residual"),
    "webhook_deliveries": (
        _READ,
        "read, add endpoint_id event_id, change answer attempts delivered_at given_up_at next_attempt_at, remove",
    ),
    "webhook_endpoints": (_READ, "read, change removal removed_at secret"),
}
ROLES = (API_ROLE, UNLEARNER_ROLE)


@pytest.mark.parametrize("role", ROLES)
async def test_a_process_may_do_what_is_written_here_and_nothing_else(db: Database, role: str) -> None:
    tables = await db.rows(
        "SELECT relname, ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0"
        " AND attidentity = '' AND attgenerated = '' ORDER BY attname) AS columns"
        " FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') ORDER BY relname"
    )
    found = {}
    async with logged_in(db, role) as engine, engine.connect() as conn:
        for table, columns in (row.values() for row in tables):
            added = [
                one for one in columns if await may(conn, f'INSERT INTO {table} ("{one}") SELECT NULL WHERE false')
            ]
            changed = [one for one in columns if await may(conn, f'UPDATE {table} SET "{one}" = DEFAULT')]
            done = {
                "read": await may(conn, f"SELECT * FROM {table} LIMIT 0"),
                f"add {'*' if added == columns else ' '.join(added)}": bool(added),
                f"change {' '.join(changed)}": bool(changed),
                "remove": await may(conn, f"DELETE FROM {table}"),
            }
            found[table] = ", ".join(what for what, can in done.items() if can)
            for statement in (
                f"TRUNCATE {table} CASCADE",
                f"CREATE TRIGGER own BEFORE INSERT ON {table} EXECUTE FUNCTION suppress_redundant_updates_trigger()",
                f"ALTER TABLE {table} DISABLE TRIGGER ALL",
                f"ALTER TABLE {table} OWNER TO CURRENT_USER",
                f"DROP TABLE {table} CASCADE",
            ):
                assert not await may(conn, statement), statement
        others = {*ROLES, make_url(db.url).username} - {role}
        for statement in (
            "CREATE TABLE own (n int)",
            "CREATE FUNCTION own() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            *(f"SET ROLE {other}" for other in others),
        ):
            assert not await may(conn, statement)
    assert found == {table: allowed[ROLES.index(role)] for table, allowed in ALLOWED.items()}


async def test_the_roles_call_these_functions_with_the_owner_s_rights_and_no_others(db: Database) -> None:
    query = (
        "SELECT oid::regprocedure::text AS name FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosecdef"
        " AND has_function_privilege(:role, oid, 'EXECUTE') ORDER BY 1"
    )
    called = {role: [row["name"] for row in await db.rows(query, role=role)] for role in ROLES}
    assert called == {
        API_ROLE: [
            "oidc_subject(bytea,text[])",
            "request_cancel(uuid,uuid)",
            "request_extend(uuid,uuid,timestamp with time zone,text)",
            "request_handle(uuid,uuid,text)",
            "request_hold(uuid,uuid,text)",
            "request_release(uuid,uuid)",
            "request_retry(uuid,uuid)",
        ],
        UNLEARNER_ROLE: ["audit_fold()"],
    }


async def test_a_process_of_the_api_takes_in_cancels_and_retries_and_the_unlearner_does_the_rest(db: Database) -> None:
    async with AsyncExitStack() as stack:
        asking = await stack.enter_async_context(logged_in(db, API_ROLE))
        db.intake._engine = asking
        completed, failed, cancelled = [await db.accept(str(n)) for n in range(3)]
        await db.intake.cancel(cancelled, db.api_key_id)
    async with logged_in(db, UNLEARNER_ROLE) as engine:
        owner, db.engine = db.engine, engine
        await db.applied([completed])
        async with transaction(engine) as conn:
            await RequestMoves(conn).mark_completed({completed: Said()})
            await RequestMoves(conn).mark_failed(failed, "x")
            await fold(conn)
        db.engine = owner
    other = uuid4()
    async with transaction(db.engine) as conn:
        await ApiKeyRepository(conn).create(other, "other", [Scope.DELETIONS_WRITE], b"o" * 32)
    async with logged_in(db, API_ROLE) as asking:
        db.intake._engine = asking
        await db.intake.retry(failed, db.api_key_id)
        for request_id in (completed, cancelled):
            with pytest.raises(Conflict):
                await db.intake.retry(request_id, db.api_key_id)
            with pytest.raises(Conflict):
                await db.intake.cancel(request_id, db.api_key_id)
        # To a client that sees only its own requests, another key's is missing.
        with pytest.raises(NotFound):
            await db.intake.cancel(failed, other, own_only=True)
        await db.rows("UPDATE api_keys SET revoked_at = now() WHERE name = 'other'")
        with pytest.raises(Unauthenticated):
            await db.intake.cancel(failed, other)
        await db.intake.cancel(failed, db.api_key_id)
    states = {row["id"]: row["status"] for row in await db.rows("SELECT id, status FROM requests")}
    assert states == {completed: "completed", failed: "cancelled", cancelled: "cancelled"}
    assert await db.value("SELECT count(*) FROM outbox") == 1


async def test_it_is_found_when_a_login_can_do_more_than_its_process_needs(db: Database) -> None:
    for role in ROLES:
        async with logged_in(db, role) as engine, transaction(engine) as conn:
            assert await roles.is_kept_to(conn, role)
            [other] = {*ROLES} - {role}
            assert not await roles.is_kept_to(conn, other)
        engine = await roles.open_engine(db.url, role, pool_size=1)
        async with transaction(engine) as conn:
            assert await conn.scalar(text("SELECT current_user")) == role
            assert not await roles.is_kept_to(conn, role)
        await engine.dispose()


async def test_a_login_without_its_role_is_refused_with_the_grant_that_it_needs(db: Database) -> None:
    login = f"{make_url(db.url).database}_bare"
    await db.rows(f"CREATE ROLE {login} LOGIN PASSWORD 'secret'")
    url = make_url(db.url).set(username=login, password="secret").render_as_string(hide_password=False)
    engine = await roles.open_engine(url, API_ROLE, pool_size=1)
    try:
        with pytest.raises(ConfigurationError, match=f"'{login}' has no right") as refused:
            await schema.require_current(engine)
        assert f'GRANT lethe_api TO "{login}"' in refused.value.remedy
    finally:
        await engine.dispose()
        await db.rows(f"DROP ROLE {login}")


async def test_a_revoked_key_stays_revoked_whoever_asks(db: Database) -> None:
    async with transaction(db.engine) as conn:
        made = await ApiKeyRepository(conn).create(uuid4(), "shop", [Scope.PREDICTIONS_READ], b"k" * 32)
        revoked = await ApiKeyRepository(conn).revoke(made.id)
        # Repeating it changes nothing.
        assert await ApiKeyRepository(conn).revoke(made.id) == revoked
    for changed in ("NULL", "now() + interval '1 year'"):
        with pytest.raises(DBAPIError, match="a revoked key stays revoked"):
            await db.rows(f"UPDATE api_keys SET revoked_at = {changed} WHERE name = 'shop'")
    assert await db.value("SELECT scopes FROM api_keys WHERE name = 'shop'") == ["predictions:read"]


async def test_a_process_of_the_api_records_uses_of_keys_but_not_when(db: Database) -> None:
    async with logged_in(db, API_ROLE) as engine, transaction(engine) as conn:
        await ApiKeyRepository(conn).record_uses([db.api_key_id])
        await ApiKeyRepository(conn).record_uses([db.api_key_id, uuid4()])
        await conn.execute(text("UPDATE api_key_uses SET used_at = '2999-01-01'"))
    assert await db.value("SELECT used_at <= now() FROM api_key_uses")


async def test_an_expired_key_changes_no_request(db: Database) -> None:
    request = await db.accept("1")
    await db.rows("UPDATE api_keys SET created_at = now() - interval '2 days', expires_at = now() - interval '1 day'")
    async with logged_in(db, API_ROLE) as asking:
        db.intake._engine = asking
        with pytest.raises(Unauthenticated):
            await db.intake.cancel(request, db.api_key_id)


async def test_a_lost_pepper_is_replaced_by_the_owner_and_leaves_no_key_valid(db: Database, tmp_path: Path) -> None:
    settings, keys = Settings(home=tmp_path / "another"), tmp_path / "another" / "keys"
    engine = db.engine
    await open_keyring(engine, settings)
    (keys / "api-pepper.key").unlink()
    assert await accept_lost(engine, settings, ["api-pepper"]) == 1
    assert await accept_lost(engine, settings, ["api-pepper", "body"]) == 0
    identities = Keyring.open(keys, known=set()).identities()
    async with transaction(engine) as conn:
        assert await VaultKeyRepository(conn).registered() == identities
    with pytest.raises(DBAPIError, match="nothing can take the place of the key tombstone-1"):
        async with engine.begin() as conn:
            await conn.execute(text("SELECT vault_key_replace('tombstone-1', decode(repeat('00', 16), 'hex'))"))
    assert await db.value("SELECT count(*) FROM api_keys WHERE revoked_at IS NULL") == 0


async def test_a_version_tombstones_and_a_recovery_are_committed_by_the_unlearner(db: Database) -> None:
    request_id = await db.accept("1")
    async with logged_in(db, UNLEARNER_ROLE) as engine:
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
