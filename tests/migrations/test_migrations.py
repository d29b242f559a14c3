import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

# They declare the tables.
import service.audit_records.search_row
import service.audit_records.totals
import service.db.tables
import service.deletions.refusals
import service.drills.repository
import service.imports.repository
import service.recovery.repository
import service.versions.batch_rows
import service.versions.versions  # noqa: F401 (they declare the tables)
from projector.forgetting.status import RepairStatus
from service.db import migrate, schema
from service.db.base import Base
from service.db.engine import connection_to, create_engine
from service.domain.drills import DrillTrigger
from service.domain.kinds import RequestKind
from service.domain.scopes import Scope
from service.domain.states import Cause, EventType, Guarantee, ImportStatus, RequestStatus
from service.errors import ConfigurationError, StateMismatch, Unavailable
from tests.support.databases import migrate_to
from tests.support.preloaded import ROOT

#: Every column, constraint and index, spelled by Postgres itself; triggers have a test of their own.
CATALOG = {
    "columns": """
        SELECT c.relname, a.attname, format_type(coalesce(nullif(t.typbasetype, 0), a.atttypid), NULL), a.attnotnull,
               a.attidentity, pg_get_expr(d.adbin, d.adrelid)
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
          AND c.relname <> 'alembic_version'
    """,
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version' AND contype <> 't'
    """,
    "indexes": """
        SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'
    """,
}


#: A request that failed and one that was cancelled, as they were at 0.8.0.
EARLIER = (
    "INSERT INTO pointers (model, version, fencing, folder, digest, weights_sha256)"
    " VALUES ('m', 0, 0, '0-0', repeat('a', 64), repeat('b', 64))",
    "INSERT INTO api_keys (id, name, scopes, hash) VALUES (gen_random_uuid(), 'k', '{audit:read}', sha256('k'))",
    *(
        f"INSERT INTO requests (id, model, kind, count, ciphertext, api_key_id, reference)"
        f" SELECT gen_random_uuid(), 'm', 'node', 1, '\\x01', id, '{reference}' FROM api_keys"
        for reference in ("failed", "cancelled")
    ),
    "UPDATE requests SET status = 'failed', failed_at = now(), failure = 'x' WHERE reference = 'failed'",
    "UPDATE requests SET status = 'cancelled', cancelled_at = now(), ciphertext = NULL WHERE reference = 'cancelled'",
)


async def _on(url: str, work: Callable[[Connection], Any]) -> Any:
    address, arguments = connection_to(url)
    engine = create_async_engine(address, connect_args=arguments)
    async with engine.begin() as conn:
        result = await conn.run_sync(work)
    await engine.dispose()
    return result


async def _query(url: str, statement: str) -> set[tuple[Any, ...]]:
    rows = await _on(url, lambda conn: conn.execute(text(statement)).all())
    return {tuple(row) for row in rows}


@pytest.mark.parametrize(("revision", "said"), [("0018", "of a Lethe before 0.1.0"), ("9.9.9", "a later one made it")])
async def test_the_schema_of_another_version_is_refused_by_name_and_left_alone(
    empty_database_url: str, revision: str, said: str
) -> None:
    await migrate.upgrade(empty_database_url)
    await _on(
        empty_database_url, lambda conn: conn.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    )
    before = {name: await _query(empty_database_url, query) for name, query in CATALOG.items()}
    with pytest.raises(schema.UnknownSchema, match=f"the schema {revision}, .*{said}") as refused:
        await migrate.upgrade(empty_database_url)
    assert refused.value.remedy
    assert await schema.current(empty_database_url) == revision
    assert {name: await _query(empty_database_url, query) for name, query in CATALOG.items()} == before


@pytest.mark.parametrize("relation", ["TABLE orders (id int)", "VIEW orders AS SELECT 1 AS id"])
async def test_the_database_of_another_program_is_refused_by_name_and_left_alone(
    empty_database_url: str, relation: str
) -> None:
    await _on(empty_database_url, lambda conn: conn.execute(text(f"CREATE {relation}")))
    with pytest.raises(schema.UnknownSchema, match="no Lethe has made, such as 'orders'"):
        await migrate.upgrade(empty_database_url)
    assert await schema.current(empty_database_url) is None
    left = await _query(empty_database_url, "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace")
    assert left == {("orders",)}


async def test_a_database_that_a_migration_has_left_empty_is_no_other_programs(empty_database_url: str) -> None:
    table = "CREATE TABLE alembic_version (version_num varchar(32) NOT NULL PRIMARY KEY)"
    await _on(empty_database_url, lambda conn: conn.execute(text(table)))
    await migrate.upgrade(empty_database_url)
    assert await schema.current(empty_database_url) == schema.head()


async def test_a_database_that_does_not_belong_is_as_it_was(empty_database_url: str) -> None:
    async def belongs(connection: AsyncConnection) -> None:
        assert await schema.revision_of(connection) == schema.head()
        raise StateMismatch("Another model's.", "Name your own.")

    await migrate_to(empty_database_url, "0.1.0")
    before = {name: await _query(empty_database_url, query) for name, query in CATALOG.items()}
    with pytest.raises(StateMismatch):
        await migrate.upgrade(empty_database_url, belongs)
    assert await schema.current(empty_database_url) == "0.1.0"
    assert {name: await _query(empty_database_url, query) for name, query in CATALOG.items()} == before


async def test_a_process_starts_on_the_schema_of_its_own_version_alone(empty_database_url: str) -> None:
    engine = create_engine(empty_database_url)
    try:
        with pytest.raises(ConfigurationError, match="at revision none, and this version of Lethe needs"):
            await schema.require_current(engine)
        await migrate.upgrade(empty_database_url)
        await schema.require_current(engine)
        await _on(
            empty_database_url, lambda conn: conn.execute(text("UPDATE alembic_version SET version_num = '9.9.9'"))
        )
        with pytest.raises(schema.UnknownSchema, match="a later one made it"):
            await schema.require_current(engine)
    finally:
        await engine.dispose()


def test_the_newest_revision_is_that_of_alembic() -> None:
    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS))
    assert schema.head() == ScriptDirectory.from_config(config).get_current_head()


async def test_upgrading_a_current_database_changes_nothing(empty_database_url: str) -> None:
    await migrate.upgrade(empty_database_url)
    await migrate.upgrade(empty_database_url)
    assert await schema.current(empty_database_url) == schema.head()


async def test_the_columns_that_are_declared_are_those_that_migrations_make(make_database: Callable[[], str]) -> None:
    migrated, declared = make_database(), make_database()
    await migrate.upgrade(migrated)
    await _on(declared, Base.metadata.create_all)
    found, wanted = await _query(migrated, CATALOG["columns"]), await _query(declared, CATALOG["columns"])
    assert len(wanted) > 100
    # That of times is read by statements in text alone.
    assert {row for row in found if row[0] != "audit_times"} == wanted


async def test_keys_of_before_are_told_probabilities_in_full_as_they_were(empty_database_url: str) -> None:
    of_before = {"reader": ["predictions:read"], "first": ["audit:read", "predictions:read"], "other": ["audit:read"]}
    rows = [f"(gen_random_uuid(), '{name}', ARRAY{scopes}, sha256('{name}'))" for name, scopes in of_before.items()]
    insert = text(f"INSERT INTO api_keys (id, name, scopes, hash) VALUES {', '.join(rows)}")
    await migrate_to(empty_database_url, "0.3.0")
    await _on(empty_database_url, lambda conn: conn.execute(insert))
    await migrate.upgrade(empty_database_url)
    assert await _query(empty_database_url, "SELECT name, scopes::text FROM api_keys") == {
        ("reader", "{predictions:exact,predictions:read}"),
        ("first", "{audit:read,predictions:exact,predictions:read}"),
        ("other", "{audit:read}"),
    }


@pytest.mark.parametrize(
    ("constraint", "values"),
    [
        ("api_keys_scopes_check", Scope),
        ("audit_counts_status_check", RequestStatus),
        ("drills_trigger_check", DrillTrigger),
        ("events_type_check", EventType),
        ("imports_status_check", ImportStatus),
        ("refused_requests_kind_check", RequestKind),
        ("requests_guarantee_check", Guarantee),
        ("requests_kind_check", RequestKind),
        ("requests_repair_check", RepairStatus),
        ("requests_status_check", RequestStatus),
        ("tombstones_kind_check", RequestKind),
        ("versions_cause_check", Cause),
        ("versions_repair_check", RepairStatus),
    ],
)
async def test_a_column_takes_what_the_domain_has_and_nothing_else(
    empty_database_url: str, constraint: str, values: type[StrEnum]
) -> None:
    await migrate.upgrade(empty_database_url)
    found = await _query(
        empty_database_url, f"SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = '{constraint}'"
    )
    [(definition,)] = found
    assert set(re.findall(r"'([^']+)'", definition)) == set(values)


async def test_the_triggers_are_in_force(empty_database_url: str) -> None:
    await migrate.upgrade(empty_database_url)
    found = await _query(
        empty_database_url,
        "SELECT tgname, tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal AND tgenabled = 'O'",
    )
    assert found == {
        ("requests_transition", "requests"),
        ("requests_queued_again", "requests"),
        ("requests_key_dropped", "requests"),
        ("requests_begin_queued", "requests"),
        ("requests_due", "requests"),
        ("decisions_logged", "decisions"),
        ("decisions_append_only", "decisions"),
        ("pointers_forward", "pointers"),
        ("leases_forward", "leases"),
        ("events_append_only", "events"),
        ("imports_final", "imports"),
        ("recoveries_final", "recoveries"),
        ("drills_append_only", "drills"),
        ("drills_total", "drills"),
        ("api_keys_revoked", "api_keys"),
        ("refused_requests_append_only", "refused_requests"),
        ("leaves_append_only", "leaves"),
        ("log_nodes_append_only", "log_nodes"),
        ("checkpoints_append_only", "checkpoints"),
        ("log_keys_append_only", "log_keys"),
        ("events_logged", "events"),
        ("requests_total_insert", "requests"),
        ("requests_total_update", "requests"),
        ("requests_total_delete", "requests"),
        ("request_search_insert", "requests"),
        ("request_search_update", "requests"),
        ("request_search_delete", "requests"),
        ("request_search_measured", "request_audits"),
        ("request_search_corrected", "request_audits"),
        ("request_search_ended", "versions"),
        ("requests_feed_accepted", "requests"),
        ("requests_feed_moved", "requests"),
        ("feed_told", "feed"),
        ("log_checks_dated", "log_checks"),
        ("feed_append_only", "feed"),
    }


async def test_requests_of_before_deadlines_are_due_thirty_days_after_their_receipt(empty_database_url: str) -> None:
    await migrate_to(empty_database_url, "0.8.0")
    await _on(empty_database_url, lambda conn: [conn.execute(text(one)) for one in EARLIER])
    await migrate.upgrade(empty_database_url)
    found = await _query(
        empty_database_url,
        "SELECT r.status, r.due_at - r.received_at, r.ended_at IS NULL, r.ended_late, s.due_at = r.due_at"
        " FROM requests r JOIN request_search s ON s.request_id = r.id",
    )
    month = timedelta(days=30)
    assert found == {("failed", month, True, None, True), ("cancelled", month, False, None, True)}
    [counted] = await _query(empty_database_url, "SELECT sum(requests)::int, count(*)::int FROM audit_counts")
    assert counted == (2, 2)


async def test_every_time_is_with_time_zone(empty_database_url: str) -> None:
    await migrate.upgrade(empty_database_url)
    kinds = await _query(empty_database_url, CATALOG["columns"])
    assert not [row for row in kinds if "time" in row[2] and row[2] != "timestamp with time zone"]


async def test_starters_that_collide_on_an_empty_database_take_turns(empty_database_url: str) -> None:
    await asyncio.gather(*(migrate.upgrade(empty_database_url) for _ in range(5)))
    assert await schema.current(empty_database_url) == schema.head()


async def test_the_url_may_be_spelled_as_for_libpq(empty_database_url: str) -> None:
    await migrate.upgrade(empty_database_url.replace("postgresql://", "postgres://") + "?sslmode=disable")
    assert await schema.current(empty_database_url) == schema.head()


async def test_a_database_that_does_not_answer_is_said_to_be_unavailable(empty_database_url: str) -> None:
    nowhere = make_url(empty_database_url).set(port=1).render_as_string(hide_password=False)
    with pytest.raises(Unavailable):
        await migrate.upgrade(nowhere)


def test_alembic_itself_takes_the_url_from_the_environment(empty_database_url: str) -> None:
    environment = {**os.environ, "DATABASE_URL": empty_database_url, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "alembic", "upgrade", "head"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    assert asyncio.run(schema.current(empty_database_url)) == schema.head()
