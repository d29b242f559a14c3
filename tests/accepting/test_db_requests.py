import asyncio
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from projector.forgetting.status import RepairStatus
from service.access.api_keys import ApiKeyRepository
from service.access.key_disposal import UnneededKeys
from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.records import DeletionRequest
from service.domain.scopes import Scope
from service.domain.states import EventType, Guarantee, RequestStatus
from service.errors import Conflict
from service.log.events import EventRepository
from service.log.leaves import AlreadyDeleted
from service.predictions.version_rows import BatchRepository, RequestsWithdrawn, VersionRepository
from service.requests.delivery import OutboxRepository
from service.requests.lookup import RequestRepository
from service.requests.moves import RequestMoves
from tests.support.service.db_harness import (
    DETAILS,
    MODEL,
    NORMS,
    Database,
    Said,
    committed,
    made,
    outcome,
)


async def _get(db: Database, request_id: UUID) -> DeletionRequest:
    async with transaction(db.engine) as conn:
        found = await RequestRepository(conn).get(request_id)
    assert found is not None
    return found[0]


async def _events(db: Database, request_id: UUID) -> list[EventType]:
    async with transaction(db.engine) as conn:
        return [event.type for event in await EventRepository(conn).of_request(request_id)]


async def test_a_request_goes_from_queued_to_completed_with_one_event_per_move(db: Database) -> None:
    request_id = await db.accept("12", "57")
    queued = await _get(db, request_id)
    assert (queued.status, queued.count, queued.reference) == (RequestStatus.QUEUED, 2, "DSR-17")
    batch_id = await db.batch([request_id])
    joined = await _get(db, request_id)
    assert (joined.status, joined.batch_id) == (RequestStatus.QUEUED, batch_id)
    async with transaction(db.engine) as conn:
        assert await RequestMoves(conn).mark_applied(batch_id, [outcome(request_id)]) == [request_id]
    applied = await _get(db, request_id)
    assert applied.status is RequestStatus.APPLIED
    assert (applied.guarantee, applied.repair) == (Guarantee.SPAN, RepairStatus.NONE)
    assert applied.applied_at is not None
    async with transaction(db.engine) as conn:
        assert await RequestMoves(conn).mark_completed({request_id: Said()}) == [request_id]
    completed = await _get(db, request_id)
    assert completed.status is RequestStatus.COMPLETED
    assert completed.completed_at is not None
    assert await _events(db, request_id) == [EventType.APPLIED, EventType.COMPLETED]
    assert await db.value("SELECT ciphertext IS NULL FROM requests")


async def test_repeating_a_move_writes_nothing(db: Database) -> None:
    ids = [await db.accept(str(n)) for n in range(3)]
    batch_id = await db.applied(ids)
    rows = await db.rows("SELECT * FROM requests ORDER BY id")
    async with transaction(db.engine) as conn:
        requests = RequestMoves(conn)
        assert await requests.mark_applied(batch_id, [outcome(request_id) for request_id in ids]) == []
        assert await requests.mark_completed({ids[0]: Said()}) == [ids[0]]
    assert [row for row in await db.rows("SELECT * FROM requests ORDER BY id") if row["id"] != ids[0]] == [
        row for row in rows if row["id"] != ids[0]
    ]
    async with transaction(db.engine) as conn:
        requests = RequestMoves(conn)
        assert await requests.mark_applied(batch_id, [outcome(ids[0])]) == []
        assert await requests.mark_completed({request_id: Said(n=1) for request_id in ids}) == ids[1:]
        assert await requests.mark_completed({request_id: Said(n=1) for request_id in ids}) == []
    for request_id in ids:
        assert await _events(db, request_id) == [EventType.APPLIED, EventType.COMPLETED]


async def test_moves_that_are_not_allowed_are_refused_and_change_nothing(db: Database) -> None:
    queued, failed = await db.accept(), await db.accept()
    batch_id = await db.applied([await db.accept()])
    async with transaction(db.engine) as conn:
        await RequestMoves(conn).mark_failed(failed, "its data")
    before = await db.rows("SELECT * FROM requests ORDER BY id")
    events = await db.rows("SELECT * FROM events")
    for request_id in (queued, failed, uuid4()):
        with pytest.raises(Conflict):
            async with transaction(db.engine) as conn:
                await RequestMoves(conn).mark_applied(batch_id, [outcome(request_id)])
        with pytest.raises(Conflict):
            async with transaction(db.engine) as conn:
                await RequestMoves(conn).mark_completed({request_id: Said()})
    with pytest.raises(Conflict):
        async with transaction(db.engine) as conn:
            await RequestMoves(conn).mark_completed_without_work(
                failed, AlreadyDeleted(RequestKind.NODE, (queued,)), "x"
            )
    assert await db.rows("SELECT * FROM requests ORDER BY id") == before
    assert await db.rows("SELECT * FROM events") == events


async def test_a_request_for_what_is_deleted_already_completes_naming_the_earlier_one(db: Database) -> None:
    earlier, request_id = await db.accept(), await db.accept()
    for moved in (True, False):
        async with transaction(db.engine) as conn:
            assert moved is await RequestMoves(conn).mark_completed_without_work(
                request_id, AlreadyDeleted(RequestKind.NODE, (earlier,)), "It was gone."
            )
    completed = await _get(db, request_id)
    assert (completed.status, completed.already_deleted_by) == (RequestStatus.COMPLETED, earlier)
    assert await _events(db, request_id) == [EventType.COMPLETED]


async def test_the_audit_is_shown_from_applied_on(db: Database) -> None:
    request_id = await db.accept()
    batch_id = await db.batch([request_id])
    async with transaction(db.engine) as conn:
        assert await RequestRepository(conn).get(request_id) == (await _get(db, request_id), None)
        await RequestMoves(conn).mark_applied(batch_id, [outcome(request_id)])
        found = await RequestRepository(conn).get(request_id)
    assert found is not None
    assert found[1] is not None
    assert found[1].norms == NORMS
    assert found[1].batch.id == batch_id
    assert found[1].batch.durations_ms == {"project": 1.9}
    assert found[1].batch.span_residual is None


async def test_a_page_reads_an_index_and_not_the_table(db: Database) -> None:
    await db.rows(
        "INSERT INTO requests (id, model, kind, count, ciphertext, api_key_id, received_at)"
        " SELECT gen_random_uuid(), :model, 'node', 1, '\\x01', :key, now() - n * interval '1 s'"
        " FROM generate_series(1, 5000) n",
        model=MODEL,
        key=db.api_key_id,
    )
    await db.rows("ANALYZE request_search")
    plan = await db.rows(
        "EXPLAIN SELECT * FROM request_search WHERE (received_at, request_id) < (now(), gen_random_uuid())"
        " ORDER BY received_at DESC, request_id DESC LIMIT 50"
    )
    assert "request_search_newest" in str(plan)
    assert "Seq Scan" not in str(plan)


async def test_only_what_is_really_queued_is_handed_to_a_batch(db: Database) -> None:
    queued, cancelled, taken, failed = [await db.accept(str(n)) for n in range(4)]
    await db.intake.cancel(cancelled, db.api_key_id)
    batch_id = await db.batch([taken])
    async with transaction(db.engine) as conn:
        requests = RequestRepository(conn)
        await RequestMoves(conn).mark_failed(failed, "x")
        claimed = await requests.queued(MODEL, [queued, cancelled, taken, failed, uuid4(), queued])
        assert [request.id for request in claimed] == [queued]
        assert claimed[0].ciphertext is not None
        assert await requests.queued("other", [queued]) == []
        assert list((await BatchRepository(conn).get(batch_id)).requests) == [taken]


async def test_a_batch_whose_request_was_cancelled_meanwhile_is_not_recorded(db: Database) -> None:
    kept, cancelled = await db.accept(), await db.accept()
    await db.intake.cancel(cancelled, db.api_key_id)
    with pytest.raises(RequestsWithdrawn) as raised:
        await db.batch([kept, cancelled])
    assert raised.value.ids == {cancelled}
    assert await db.value("SELECT count(*) FROM batches") == 0
    assert (await _get(db, kept)).batch_id is None


async def test_cancelling_forgets_the_targets_their_key_and_the_outbox_row(db: Database) -> None:
    request_id = await db.accept("12")
    assert request_id in db.kept()
    cancelled = await db.intake.cancel(request_id, db.api_key_id)
    assert (cancelled.id, cancelled.status) == (request_id, RequestStatus.CANCELLED)
    assert cancelled.cancelled_at is not None
    assert await UnneededKeys(db.engine, db.keys).destroy_dropped() == 1
    assert db.kept() == {}
    assert await db.rows("SELECT * FROM outbox") == []
    with pytest.raises(Conflict, match="cancelled"):
        await db.intake.cancel(request_id, db.api_key_id)


async def test_the_sweeper_gets_each_forgotten_request_once_in_a_while(db: Database) -> None:
    old, in_outbox, taken, young = [await db.accept(str(n)) for n in range(4)]
    async with transaction(db.engine) as conn:
        await OutboxRepository(conn).delete([old, taken, young])
    await db.batch([taken])
    for request_id in (old, in_outbox, taken):
        await db.rows("UPDATE requests SET queued_at = now() - interval '1 h' WHERE id = :id", id=request_id)

    async def unclaimed() -> list[UUID]:
        async with transaction(db.engine) as conn:
            return await RequestRepository(conn).unclaimed(MODEL, older_than_s=60, limit=10)

    assert await unclaimed() == [old]
    assert await unclaimed() == []
    await db.rows("UPDATE requests SET swept_at = now() - interval '2 min' WHERE swept_at IS NOT NULL")
    assert await unclaimed() == [old]


async def test_an_unfinished_batch_is_found_with_everything_recovery_needs(db: Database) -> None:
    ids = [await db.accept(str(n)) for n in range(3)]
    version = made(requests=3, fencing=7, folder="1-7")
    async with transaction(db.engine) as conn:
        assert await VersionRepository(conn).unfinished(MODEL) == []
        await committed(conn, version, dict.fromkeys(ids, NORMS))
    async with transaction(db.engine) as conn:
        assert await VersionRepository(conn).unfinished(MODEL) == [version]
        assert await VersionRepository(conn).unfinished("other") == []
        found = await BatchRepository(conn).get(version.id)
    assert (found.details, list(found.requests), found.norms) == (DETAILS, ids, dict.fromkeys(ids, NORMS))


async def test_requests_of_keys_that_may_know_what_is_deleted_are_distinguished_from_others(db: Database) -> None:
    informed, writer = await db.accept("1"), uuid4()
    async with transaction(db.engine) as conn:
        await ApiKeyRepository(conn).create(writer, "writer", [Scope.DELETIONS_WRITE], b"w" * 32)
    other = (await db.intake.accept(replace(db.new("2"), api_key_id=writer))).request.id
    async with transaction(db.engine) as conn:
        requests = RequestRepository(conn)
        assert await requests.all_may_know([informed])
        assert not await requests.all_may_know([informed, other])


async def test_a_batch_of_a_thousand_requests_goes_through(db: Database) -> None:
    answers = await asyncio.gather(*(db.intake.accept(db.new(str(n))) for n in range(1000)))
    ids = [answer.request.id for answer in answers]
    batch_id = await db.applied(ids)
    async with transaction(db.engine) as conn:
        assert await RequestMoves(conn).mark_completed({request_id: Said(n=1) for request_id in ids}) == ids
    assert await db.value("SELECT count(*) FROM request_audits WHERE batch_id = :id", id=batch_id) == 1000
    assert await db.value("SELECT count(*) FROM events") == 2000
