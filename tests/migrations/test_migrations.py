import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.config import main as alembic_program
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

# They declare the tables.
from projector.forgetting.status import RepairStatus
from service.db import migrate, schema
from service.db.engine import connection_to, create_engine
from service.db.tables import Base
from service.domain.kinds import DELETIONS, RequestKind
from service.domain.scopes import Scope
from service.domain.states import Cause, EventType, Guarantee, ImportStatus, RequestStatus
from service.errors import ConfigurationError, StateMismatch, Unavailable
from service.reports import search
from service.requests import submission
from service.unlearner import causes
from tests.support.everyday import every_case
from tests.support.preloaded import ROOT

#: Every column, constraint and index, as spelled by Postgres itself; triggers have their own test.
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


@pytest.mark.ci
@every_case(
    ("revision", "said"),
    [
        *((revision, "of a Lethe before its first release") for revision in ("0018", "0.1.0", "0.7.0", "0.15.0")),
        ("r9999", "a later version or another program made it"),
    ],
)
def test_the_schema_of_another_version_is_refused_by_name_and_left_alone(
    database_url: str, revision: str, said: str
) -> None:
    async def refused() -> None:
        await _on(
            database_url, lambda conn: conn.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
        )
        before = {name: await _query(database_url, query) for name, query in CATALOG.items()}
        with pytest.raises(schema.UnknownSchema, match=f"the schema {revision}, .*{said}") as refused:
            await migrate.upgrade(database_url)
        assert refused.value.remedy
        assert await schema.current(database_url) == revision
        assert {name: await _query(database_url, query) for name, query in CATALOG.items()} == before

    asyncio.run(refused())


@pytest.mark.parametrize("relation", ["TABLE orders (id int)", "VIEW orders AS SELECT 1 AS id"])
async def test_the_database_of_another_program_is_refused_by_name_and_left_alone(
    empty_database_url: str, relation: str
) -> None:
    await _on(empty_database_url, lambda conn: conn.execute(text(f"CREATE {relation}")))
    with pytest.raises(schema.UnknownSchema, match="of another program, such as 'orders'"):
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

    with pytest.raises(StateMismatch):
        await migrate.upgrade(empty_database_url, belongs)
    assert await schema.current(empty_database_url) is None
    assert await _query(empty_database_url, CATALOG["columns"]) == set()


async def test_a_process_starts_on_the_schema_of_its_own_version_alone(empty_database_url: str) -> None:
    engine = create_engine(empty_database_url)
    try:
        with pytest.raises(ConfigurationError, match="at revision none, and this version of Lethe needs"):
            await schema.require_current(engine)
        await migrate.upgrade(empty_database_url)
        await schema.require_current(engine)
        await _on(
            empty_database_url, lambda conn: conn.execute(text("UPDATE alembic_version SET version_num = 'r9999'"))
        )
        with pytest.raises(schema.UnknownSchema, match="a later version or another program made it"):
            await schema.require_current(engine)
    finally:
        await engine.dispose()


def test_a_migration_made_with_alembic_revision_comes_after_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "migrations", tmp_path / "migrations", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    for named in (["--rev-id", "r9998"], []):
        alembic_program(["revision", "-m", "a column", *named])
    before = schema.head()
    assert f'\ndown_revision = "{before}"\n' in (tmp_path / "migrations/versions/r9998_a_column.py").read_text()

    monkeypatch.setattr(schema, "MIGRATIONS", tmp_path / "migrations")
    schema._revisions.cache_clear()
    try:
        config = Config()
        config.set_main_option("script_location", str(schema.MIGRATIONS))
        assert schema.head() == ScriptDirectory.from_config(config).get_current_head() != before
        assert schema._revisions()[schema.head()] == "r9998"
    finally:
        schema._revisions.cache_clear()


async def test_upgrading_a_current_database_changes_nothing(database_url: str) -> None:
    before = {name: await _query(database_url, query) for name, query in CATALOG.items()}
    await migrate.upgrade(database_url)
    assert await schema.current(database_url) == schema.head()
    assert {name: await _query(database_url, query) for name, query in CATALOG.items()} == before


async def test_the_columns_that_are_declared_are_those_that_migrations_make(
    database_url: str, empty_database_url: str
) -> None:
    assert all((causes, search, submission)), "these and their imports declare all tables"
    declared = empty_database_url
    await _on(declared, Base.metadata.create_all)
    found, wanted = await _query(database_url, CATALOG["columns"]), await _query(declared, CATALOG["columns"])
    assert len(wanted) > 100
    # The totals of the audit are used only by text statements.
    assert {row for row in found if row[0] not in ("audit_counts", "audit_times")} == wanted


@every_case(
    ("constraint", "values"),
    [
        ("api_keys_scopes_check", Scope),
        ("audit_counts_status_check", RequestStatus),
        ("events_type_check", EventType),
        ("imports_status_check", ImportStatus),
        ("refused_requests_kind_check", RequestKind),
        ("requests_guarantee_check", Guarantee),
        ("requests_kind_check", RequestKind),
        ("requests_repair_check", RepairStatus),
        ("requests_status_check", RequestStatus),
        ("tombstones_kind_check", DELETIONS),
        ("versions_cause_check", Cause),
        ("versions_repair_check", RepairStatus),
    ],
)
def test_a_column_takes_what_the_domain_has_and_nothing_else(
    database_url: str, constraint: str, values: Iterable[StrEnum]
) -> None:
    named = f"SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = '{constraint}'"
    [(definition,)] = asyncio.run(_query(database_url, named))
    assert set(re.findall(r"'([^']+)'", definition)) == set(values)


async def test_the_triggers_are_in_force(database_url: str) -> None:
    found = await _query(
        database_url,
        "SELECT tgname, tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal AND tgenabled = 'O'",
    )
    assert found == {
        ("requests_transition", "requests"),
        ("requests_join_ended", "requests"),
        ("requests_hold_ends", "requests"),
        ("requests_go_on", "requests"),
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
        ("requests_total_drill", "drills"),
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
        ("api_key_uses_dated", "api_key_uses"),
        ("feed_append_only", "feed"),
    }


async def test_every_time_is_with_time_zone(database_url: str) -> None:
    kinds = await _query(database_url, CATALOG["columns"])
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


@pytest.mark.ci
def test_alembic_itself_takes_the_url_from_the_environment(empty_database_url: str) -> None:
    environment = {**os.environ, "DATABASE_URL": empty_database_url, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "alembic", "upgrade", "head"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    assert asyncio.run(schema.current(empty_database_url)) == schema.head()
