"""Repairs in the database: the waiting requests, the outcomes, and one final event for each request."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from sqlalchemy.exc import IntegrityError

from projector.forgetting.status import RepairStatus
from service.db.transactions import transaction
from service.domain.states import Cause, EventType, Guarantee
from service.domain.versions import Version, repaired_in
from service.log.canonical import parse_canonical
from service.log.events import EventRepository, LogRepository
from service.predictions.version_rows import VersionRepository
from service.requests.lookup import RequestRepository
from service.requests.moves import AppliedOutcome, RequestMoves
from service.unlearner.causes import ImportRepository
from service.unlearner.pending_repairs import Pending, PendingRepairs, RepairEnd
from tests.support.service.db_harness import MODEL, NORMS, Database, Said, committed, imported, made, open_database

PENDING, NOT_CONVERGED, CONVERGED = RepairStatus.PENDING, RepairStatus.NOT_CONVERGED, RepairStatus.CONVERGED


@pytest.fixture
async def database(database_url: str, tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(database_url, tmp_path) as database:
        yield database


def repair(number: int, requests: int = 0, status: RepairStatus = CONVERGED) -> Version:
    """Return a version made by a repair."""
    return made(
        number,
        cause=Cause.REPAIR,
        requests=requests,
        weights_sha256="e" * 64,
        repair=status,
        repair_version=number,
        repair_iterations=4,
        repair_products=31,
        repair_weight_change=0.01,
        distance_bound_before=4.1,
        distance_bound_after=1e-9,
        distance_bound_after_relative=1e-11,
        durations_ms={"repair": 410.0},
    )


async def applied(database: Database, state: RepairStatus, number: int, *nodes: str) -> UUID:
    """Return a request that was applied in its own batch, with a repair in this state."""
    request = await database.accept(*nodes)
    version = made(number, repair=state, distance_bound_after=4.1)
    outcome = AppliedOutcome(request, Guarantee.SPAN, state, "Its repair goes on.", Said())
    async with transaction(database.engine) as connection:
        await committed(connection, version, {request: NORMS})
        await RequestMoves(connection).mark_applied(version.id, [outcome])
        await VersionRepository(connection).finish(version.id, span_residual=1e-15, durations_ms={})
        await RequestMoves(connection).mark_completed({request: Said()})
    return request


def converged(one: Pending, end: Version) -> RepairEnd:
    batch = repaired_in(one.batch, end)
    return RepairEnd(one.request_id, batch, Guarantee.RETRAINED, "The repair did it.", Said(repair="converged"))


async def test_a_pending_repair_ends_once_for_every_request_that_waits_for_it(database: Database) -> None:
    first = await applied(database, PENDING, 1, "1")
    second = await applied(database, PENDING, 2, "2", "3")
    await applied(database, NOT_CONVERGED, 3, "4")
    await applied(database, RepairStatus.NONE, 4, "5")
    async with transaction(database.engine) as connection:
        repairs = PendingRepairs(connection)
        assert await repairs.count_pending(MODEL) == 2
        waiting = await repairs.pending(MODEL)
        assert [(one.request_id, one.count) for one in waiting] == [(first, 1), (second, 2)]
        assert (waiting[0].batch.model_version_after, waiting[0].batch.repair, waiting[0].norms) == (1, PENDING, NORMS)
        end = repair(9, requests=2)
        await VersionRepository(connection).insert(end)
        ends = [converged(one, end) for one in waiting]
        assert await repairs.end(ends) == [first, second]
        assert await repairs.end(ends) == []
        assert (await repairs.count_pending(MODEL), await repairs.pending(MODEL)) == (0, [])

    async with transaction(database.engine) as connection:
        for request in (first, second):
            found = await RequestRepository(connection).get(request)
            assert found is not None
            state, audit = found
            assert (state.guarantee, state.repair) == (Guarantee.RETRAINED, CONVERGED)
            assert state.explanation == "The repair did it."
            assert audit is not None
            assert (audit.batch.repair, audit.batch.repair_version, audit.batch.repair_iterations) == (CONVERGED, 9, 4)
            assert audit.batch.distance_bound_after_relative == 1e-11
            assert audit.batch.durations_ms == {"project": 1.9, "repair": 410.0}
            events = [event.type for event in await EventRepository(connection).of_request(request)]
            assert events == [EventType.APPLIED, EventType.COMPLETED, EventType.REPAIRED]
    # Their batches' own weights are unchanged.
    held = await database.rows("SELECT number FROM versions WHERE guarantee = 'retrained'")
    assert [row["number"] for row in held] == [9]


async def test_a_repair_that_converged_ends_earlier_ones_that_fell_short_on_the_same_trained_model(
    database: Database,
) -> None:
    await applied(database, NOT_CONVERGED, 1, "1")
    async with transaction(database.engine) as connection:
        version = made(2, cause=Cause.IMPORT)
        await imported(connection, version)
        await VersionRepository(connection).finish(version.id, span_residual=2e-15, durations_ms={})
    short = await applied(database, NOT_CONVERGED, 3, "2")
    waiting = await applied(database, PENDING, 4, "3")
    await applied(database, RepairStatus.NONE, 5, "4")
    async with transaction(database.engine) as connection:
        repairs = PendingRepairs(connection)
        concerned_by_id = {one.request_id: one for one in await repairs.concerned(MODEL, CONVERGED)}
        assert list(concerned_by_id) == [waiting, short]
        assert [one.request_id for one in await repairs.concerned(MODEL, NOT_CONVERGED)] == [waiting]
        end = repair(9)
        await VersionRepository(connection).insert(end)
        again = replace(converged(concerned_by_id[short], end), batch=concerned_by_id[short].batch)
        assert await repairs.end([again]) == []
        assert set(await repairs.end([converged(one, end) for one in concerned_by_id.values()])) == {waiting, short}
        assert await repairs.concerned(MODEL, CONVERGED) == []
        events = [event.type for event in await EventRepository(connection).of_request(short)]
        assert events == [EventType.APPLIED, EventType.COMPLETED, EventType.REPAIRED]


async def test_a_repair_given_up_is_recorded_by_an_event_of_its_own(database: Database) -> None:
    request = await applied(database, PENDING, 1, "1")
    async with transaction(database.engine) as connection:
        repairs = PendingRepairs(connection)
        (one,) = await repairs.pending(MODEL)
        end = RepairEnd(request, replace(one.batch, repair=NOT_CONVERGED), Guarantee.SPAN, "It ended short.", Said(n=3))
        assert await repairs.end([end]) == [request]
        assert await repairs.end([end]) == []
        *before, last = await EventRepository(connection).of_request(request)
        assert [event.type for event in before] == [EventType.APPLIED, EventType.COMPLETED]
        assert (last.type, last.payload) == (EventType.NOT_REPAIRED, {"n": 3})
        leaf = parse_canonical((await LogRepository(connection).of_request(request))[-1].data)
        assert (leaf["type"], leaf["request"]["repair"], leaf["request"]["guarantee"]) == (
            "not_repaired",
            "not_converged",
            "span",
        )
        assert leaf["request"]["explanation"] == "It ended short."
    with pytest.raises(IntegrityError, match="events_not_repaired_once"):
        async with transaction(database.engine) as connection:
            await EventRepository(connection).append_many(EventType.NOT_REPAIRED, {request: Said()})


async def test_whatever_made_them_versions_are_one_series_and_unfinished_until_nothing_older_is_there(
    database: Database,
) -> None:
    await applied(database, PENDING, 1, "1")
    async with transaction(database.engine) as connection:
        versions = VersionRepository(connection)
        assert await versions.latest("other", limit=2) == []
        assert [(one.number, one.repair, one.span_residual) for one in await versions.latest(MODEL, limit=2)] == [
            (1, PENDING, 1e-15)
        ]
        import_id = uuid4()
        await ImportRepository(connection).ask(import_id, MODEL, exclude_deleted=False)
        assert len(await versions.latest(MODEL, limit=2)) == 1
        second = made(2, id=import_id, cause=Cause.IMPORT)
        await versions.insert(second)
        assert await versions.unfinished(MODEL) == [second]
        assert await versions.finish(import_id, span_residual=2e-15, durations_ms={"verify": 2.0})
        assert not await versions.finish(import_id, span_residual=1.0, durations_ms={})
        third = repair(3)
        await versions.insert(third)
        assert await versions.unfinished(MODEL) == [third]
        finished = replace(second, span_residual=2e-15, durations_ms={"project": 1.9, "verify": 2.0})
        assert await versions.latest(MODEL, limit=2) == [third, finished]
    with pytest.raises(IntegrityError, match="versions_unfinished"):
        async with transaction(database.engine) as connection:
            await VersionRepository(connection).insert(repair(4))


@pytest.mark.parametrize(
    ("statement", "constraint"),
    [
        ("UPDATE requests SET repair = 'converged'", "requests_retrained_check"),
        ("UPDATE requests SET guarantee = 'retrained'", "requests_retrained_check"),
        ("UPDATE versions SET repair = 'converged'", "versions_repair_version_check"),
        ("UPDATE versions SET repair_version = 0", "versions_repair_version_check"),
        ("UPDATE versions SET repair_version = 7", "versions_repair_version_fkey"),
        ("UPDATE versions SET repair = 'soon'", "versions_repair_check"),
    ],
)
async def test_the_schema_forbids_a_repair_that_contradicts_itself(
    database: Database, statement: str, constraint: str
) -> None:
    await applied(database, PENDING, 1, "1")
    with pytest.raises(IntegrityError, match=constraint):
        await database.rows(statement)
