"""Totals from triggers equal a count of every request, whatever happens to requests."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from benchmarks.performance.audit.events import MODEL as GENERATED
from projector.forgetting.status import RepairStatus
from service.db.engine import create_engine
from service.db.roles import AUDIT_ROLE
from service.db.transactions import transaction
from service.domain.figures import FIGURES
from service.domain.kinds import RequestKind
from service.domain.states import Guarantee, RequestStatus
from service.log.leaves import AlreadyDeleted
from service.predictions.version_rows import VersionRepository
from service.reports.queries import COLUMNS, AuditFilters
from service.reports.schemas import SeriesPoint, SeriesStep, Summary
from service.reports.summary import fold, series, summary
from service.requests.lookup import RequestRepository
from service.requests.moves import RequestMoves
from tests.support.databases import Templates
from tests.support.evidence.audit_world import UNTIL, AuditWorld, generated
from tests.support.evidence.totals import BY_PEOPLE, assert_totals_are_right
from tests.support.preloaded import ROOT
from tests.support.service.db_harness import MODEL, Database, Said

VIEWS = ("audit_summary", "audit_series", "audit_export", "audit_drills", "audit_months", "audit_open")
DASHBOARD = ROOT / "docker" / "grafana" / "dashboards" / "audit.json"


@pytest.fixture
async def world(templates: Templates) -> AsyncIterator[AuditWorld]:
    async with generated(templates) as world:
        yield world


async def summary_of(world: Any, model: str, **window: Any) -> Summary:
    async with transaction(world.engine) as conn:
        return await summary(conn, model, **window)


async def points(world: AuditWorld, since: datetime, until: datetime, step: SeriesStep) -> list[SeriesPoint]:
    async with transaction(world.engine) as conn:
        return await series(conn, GENERATED, since, until, step)


async def test_totals_follow_every_move_of_a_request(db: Database) -> None:
    ids = [await db.accept(str(n)) for n in range(6)]
    await assert_totals_are_right(db)
    async with transaction(db.engine) as conn:
        await fold(conn)
    batch_id = await db.applied(ids[:2])
    await assert_totals_are_right(db)
    async with transaction(db.engine) as conn:
        await VersionRepository(conn).finish(batch_id, span_residual=3e-15, durations_ms={})
    await assert_totals_are_right(db)
    await db.rows("UPDATE versions SET distance_bound_before_relative = 0.5, distance_bound_after_relative = 1e-9")
    await db.rows("UPDATE request_audits SET injected_norm_before = 0.75, injected_norm_after = 0.25")
    await assert_totals_are_right(db)
    async with transaction(db.engine) as conn:
        await RequestMoves(conn).mark_completed({ids[0]: Said()})
        await RequestMoves(conn).mark_failed(ids[2], "Its features are broken.")
    await db.intake.cancel(ids[3], db.api_key_id)
    async with transaction(db.engine) as conn:
        await RequestMoves(conn).mark_completed_without_work(
            ids[4], AlreadyDeleted(RequestKind.NODE, (ids[0],)), "It was gone."
        )
    await assert_totals_are_right(db)
    # Retried, and deleted manually: the totals keep nothing of either.
    await db.rows("UPDATE requests SET status = 'queued', failed_at = NULL, failure = NULL WHERE id = :id", id=ids[2])
    await db.rows("DELETE FROM outbox WHERE request_id = :id", id=ids[5])
    await db.rows("ALTER TABLE feed DISABLE TRIGGER USER")
    await db.rows("DELETE FROM feed WHERE request_id = :id", id=ids[5])
    await db.rows("ALTER TABLE feed ENABLE TRIGGER USER")
    await db.rows("DELETE FROM requests WHERE id = :id", id=ids[5])
    await assert_totals_are_right(db)
    async with transaction(db.engine) as conn:
        await fold(conn)
    await assert_totals_are_right(db)
    found = await summary_of(db, MODEL)
    assert found.by_status == {
        RequestStatus.QUEUED: 1,
        RequestStatus.APPLIED: 1,
        RequestStatus.COMPLETED: 2,
        RequestStatus.FAILED: 0,
        RequestStatus.CANCELLED: 1,
    }
    assert (found.requests, found.open) == (5, 2)
    assert found.oldest_open is not None
    assert found.oldest_open.id == ids[1]


async def test_folding_leaves_one_row_for_each_total_and_none_for_zero(db: Database) -> None:
    await asyncio.gather(*(db.accept(str(n)) for n in range(5)))
    for _ in range(2):
        async with transaction(db.engine) as conn:
            await fold(conn)
        assert await db.rows("SELECT status, requests, folded FROM audit_counts") == [
            {"status": "queued", "requests": 5, "folded": True}
        ]


async def test_folding_leaves_it_to_whoever_is_folding_already(db: Database) -> None:
    await db.accept()
    async with transaction(db.engine) as first, transaction(db.engine) as second:
        await fold(first)
        await fold(second)
    assert await db.value("SELECT sum(requests) FROM audit_counts") == 1


async def test_drills_are_in_no_total_and_never_open(db: Database) -> None:
    person, drill = await db.accept("1"), await db.accept("2")
    await db.rows("INSERT INTO drills (request_id, model, cohort) VALUES (:id, :m, 1)", id=drill, m=MODEL)
    for _ in range(2):
        await assert_totals_are_right(db)
        found = await summary_of(db, MODEL)
        assert found.requests == found.open == 1
        assert found.oldest_open is not None
        assert found.oldest_open.id == person
        await db.rows("UPDATE requests SET received_at = received_at - interval '31 days' WHERE id = :id", id=drill)
    assert found.open_past_deadline == 0
    async with transaction(db.engine) as conn:
        await RequestMoves(conn).mark_failed(drill, "It is broken.")
        assert [one.id for one in await RequestRepository(conn).open(MODEL, limit=9)] == [person]
    await assert_totals_are_right(db)
    assert (await summary_of(db, MODEL)).open_failed == 0


async def test_a_rolled_back_move_is_in_no_total(db: Database) -> None:
    request_id = await db.accept()
    async with db.engine.connect() as conn:
        await RequestMoves(conn).mark_failed(request_id, "It is broken.")
        await conn.rollback()
    await assert_totals_are_right(db)


async def test_a_summary_counts_as_the_requests_do(world: AuditWorld) -> None:
    await assert_totals_are_right(world)
    found = await summary_of(world, GENERATED)
    for counts, column in (
        (found.by_status, "status"),
        (found.by_kind, "kind"),
        (found.by_guarantee, "guarantee"),
        (found.by_repair, "repair"),
    ):
        rows = await world.rows(f"SELECT {column}, count(*) FROM {BY_PEOPLE} WHERE {column} IS NOT NULL GROUP BY 1")
        assert {state.value: count for state, count in counts.items() if count} == dict(map(tuple, rows))
    [(version, rank, live)] = await world.rows("SELECT max(number), min(rank), min(live_nodes) FROM versions")
    [(unchanged,)] = await world.rows(f"""
        SELECT count(*) FILTER (WHERE directions_removed = 0) / count(*)::float8
        FROM {BY_PEOPLE} JOIN versions v ON v.id = batch_id WHERE applied_at IS NOT NULL
    """)
    assert (found.model_version, found.rank) == (version, rank)
    assert found.live_nodes == live
    assert found.unchanged_projection_share == pytest.approx(unchanged)
    assert found.by_kind.keys() == set(RequestKind)
    assert found.by_guarantee.keys() == set(Guarantee)
    assert found.by_repair.keys() == set(RepairStatus)


async def test_percentiles_are_within_one_per_cent(world: AuditWorld) -> None:
    found = await summary_of(world, GENERATED)
    for step, percentiles in (("applied", found.seconds_to_applied), ("completed", found.seconds_to_completed)):
        [(exact,)] = await world.rows(f"""
            SELECT percentile_disc(ARRAY[0.5, 0.95, 0.99])
                WITHIN GROUP (ORDER BY extract(epoch FROM {step}_at - received_at)::float8)
            FROM {BY_PEOPLE} WHERE {step}_at IS NOT NULL
        """)
        assert [percentiles.p50, percentiles.p95, percentiles.p99] == pytest.approx(exact, rel=0.0101)


async def test_a_window_is_of_whole_days_and_what_is_open_is_so_whatever_the_window(world: AuditWorld) -> None:
    since, until = (UNTIL - timedelta(days=4)).date(), (UNTIL - timedelta(days=2)).date()
    found = await summary_of(world, GENERATED, since=since, until=until)
    [(inside,)] = await world.rows(
        f"SELECT count(*) FROM {BY_PEOPLE} WHERE (received_at AT TIME ZONE 'UTC')::date IN (:first, :second)",
        first=since,
        second=since + timedelta(days=1),
    )
    assert found.requests == inside > 0
    [(oldest, still_open)] = await world.rows(
        f"SELECT min(received_at), count(*) FROM {BY_PEOPLE} WHERE ended_at IS NULL"
    )
    assert found.oldest_open is not None
    assert (found.oldest_open.received_at, found.open) == (oldest, still_open)


async def test_hours_add_up_to_days_and_days_to_what_is_in_the_requests(world: AuditWorld) -> None:
    first = datetime(2026, 11, 14, tzinfo=UTC)
    days = await points(world, first, first + timedelta(days=4), SeriesStep.DAY)
    hours = await points(world, first, first + timedelta(days=4), SeriesStep.HOUR)
    assert [day.start for day in days] == [first + timedelta(days=n) for n in range(4)]
    assert [hour.start for hour in hours] == [first + timedelta(hours=n) for n in range(96)]
    for place, day in enumerate(days):
        within = hours[24 * place : 24 * place + 24]
        for step in ("received", "applied", "completed", "failed"):
            [(count,)] = await world.rows(
                f"SELECT count(*) FROM {BY_PEOPLE} WHERE {step}_at >= :since AND {step}_at < :until",
                since=day.start,
                until=day.start + timedelta(days=1),
            )
            assert getattr(day, step) == count == sum(getattr(hour, step) for hour in within)
        [(median, tail)] = await world.rows(
            f"""
            SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY age), percentile_disc(0.95) WITHIN GROUP (ORDER BY age)
            FROM (SELECT extract(epoch FROM completed_at - received_at)::float8 AS age, completed_at FROM {BY_PEOPLE}) a
            WHERE completed_at >= :since AND completed_at < :until
            """,
            since=day.start,
            until=day.start + timedelta(days=1),
        )
        assert day.median_seconds_to_completed == pytest.approx(median, rel=0.0101)
        assert day.p95_seconds_to_completed == pytest.approx(tail, rel=0.0101)
        assert (day.rank_after, day.live_nodes) == (within[-1].rank_after, within[-1].live_nodes)
        bounds = [hour.max_distance_bound_after_relative for hour in within]
        assert day.max_distance_bound_after_relative == max(bound for bound in bounds if bound is not None)


async def test_what_is_left_is_what_the_newest_import_or_recovery_left(world: AuditWorld) -> None:
    async def left() -> tuple[int | None, int | None]:
        found = await summary_of(world, GENERATED)
        [row] = await world.rows("SELECT rank, live_nodes FROM audit_summary")
        later = UNTIL + timedelta(days=900)
        [point] = await points(world, later, later + timedelta(hours=1), SeriesStep.HOUR)
        assert (found.rank, found.live_nodes) == tuple(row) == (point.rank_after, point.live_nodes)
        return found.rank, found.live_nodes

    for days, number, cause, rank, live in ((401, 1000, "import", 17, 471), (402, 1001, "recovery", 16, 470)):
        await world.rows(f"""
            INSERT INTO versions (id, model, number, fencing, cause, folder, digest, weights_sha256, number_before,
                weights_sha256_before, rank, live_nodes, edges, device, durations_ms, requests, deleted_nodes,
                deleted_features, deleted_edges, deleted_labels, directions_removed, repair, committed_at)
            VALUES (gen_random_uuid(), 'generated', {number}, 1, '{cause}', '{number}-1', repeat('a', 64),
                repeat('b', 64), 1, repeat('a', 64), {rank}, {live}, 100, 'cpu', '{{}}', 0, 20, 0, 0, 0, 0, 'none',
                now() + interval '{days} days')
        """)
        await world.rows(f"UPDATE pointers SET version = {number}, folder = '{number}-1' WHERE model = 'generated'")
        assert await left() == (rank, live)


async def test_the_views_show_what_the_queries_return(world: AuditWorld) -> None:
    found = await summary_of(world, GENERATED)
    [row] = await world.rows("SELECT * FROM audit_summary")
    assert (row.model, row.requests) == (GENERATED, found.requests)
    for name in ("open", "open_past_deadline", "open_near_deadline", "open_failed", "deadline_days"):
        assert getattr(row, name) == getattr(found, name)
    assert (row.on_time, row.late) == (sum(m.on_time for m in found.months), sum(m.late for m in found.months))
    for status, count in found.by_status.items():
        assert getattr(row, status) == count
    for guarantee, count in found.by_guarantee.items():
        assert getattr(row, f"guarantee_{guarantee}") == count
    assert row.unchanged_projection_share == pytest.approx(found.unchanged_projection_share)
    assert (row.p50_seconds_to_applied, row.p99_seconds_to_completed) == (
        found.seconds_to_applied.p50,
        found.seconds_to_completed.p99,
    )
    assert (row.model_version, row.rank, row.live_nodes) == (found.model_version, found.rank, found.live_nodes)
    days = {day.start: day for day in await world.rows("SELECT * FROM audit_series")}
    for point in await points(world, UNTIL - timedelta(days=5), UNTIL - timedelta(days=1), SeriesStep.DAY):
        day = days[point.start]
        assert (day.received, day.applied, day.completed, day.failed) == (
            point.received,
            point.applied,
            point.completed,
            point.failed,
        )
        assert day.median_seconds_to_completed == point.median_seconds_to_completed
    [(rows, audited)] = await world.rows("SELECT count(*), count(injected_norm_before) FROM audit_export")
    [(drills,)] = await world.rows("SELECT count(*) FROM audit_drills")
    assert rows == found.requests + drills
    assert [(audited,)] == await world.rows("SELECT count(injected_norm_before) FROM request_audits")


async def test_the_view_of_requests_has_what_the_export_has(world: AuditWorld) -> None:
    rows = {row.id: row._mapping for row in await world.rows("SELECT * FROM audit_export")}
    entries = await world.found(AuditFilters(), limit=500)
    assert len(rows) == len(entries) > 0
    # The text of a person, and a view's columns of the request and its batch's commit.
    assert set(COLUMNS) ^ set(next(iter(rows.values()))) == {
        *("reference", "explanation", "failure"),
        *("seconds_to_applied", "seconds_to_completed", "committed_at"),
    }
    for entry in entries:
        figures = dict.fromkeys(FIGURES) if entry.audit is None else entry.audit.figures
        row = rows[entry.request.id]
        for name in ("due_at", "ended_at", "late", "handled_at", "handled_by"):
            assert row[name] == getattr(entry.request, name), name
        assert {name: row[name] for name in FIGURES if name in COLUMNS} == {
            name: value for name, value in figures.items() if name in COLUMNS
        }


async def test_the_audit_role_reads_the_views_and_nothing_else(world: AuditWorld) -> None:
    asked = "SELECT column_name FROM information_schema.columns WHERE table_name = ANY(:views)"
    columns = await world.rows(asked, views=list(VIEWS))
    held = {name for (name,) in columns}
    assert {"injected_norm_after", "p95_seconds_to_completed"} <= held
    assert not held & {"reference", "ciphertext", "idempotency_key", "api_key_id", "explanation", "failure"}
    await world.rows(f"GRANT {AUDIT_ROLE} TO CURRENT_USER")
    engine = create_engine(world.url, pool_size=1, role=AUDIT_ROLE)
    try:
        for view in VIEWS:
            async with engine.connect() as conn:
                assert (await conn.execute(text(f"SELECT count(*) FROM {view}"))).scalar_one() > 0
        for table in ("requests", "events", "audit_counts", "api_keys", "drills"):
            async with engine.connect() as conn:
                with pytest.raises(ProgrammingError, match="permission denied"):
                    await conn.execute(text(f"SELECT count(*) FROM {table}"))
    finally:
        await engine.dispose()


async def test_every_chart_of_the_grafana_dashboard_asks_what_the_views_answer(world: AuditWorld) -> None:
    await world.rows(f"GRANT {AUDIT_ROLE} TO CURRENT_USER")
    engine = create_engine(world.url, pool_size=1, role=AUDIT_ROLE)
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [target["rawSql"].replace("$model", GENERATED) for panel in panels for target in panel["targets"]]
    asked = [re.sub(r"\$__timeFilter\((\w+)\)", r"\1 BETWEEN '2026-11-01' AND '2026-12-01'", query) for query in asked]
    try:
        for query in asked:
            async with engine.connect() as conn:
                rows = (await conn.execute(text(query))).all()
            assert rows, query
    finally:
        await engine.dispose()
