"""Requests on hold: not late, not taken up, released with what waits behind them; and races for one request."""

import asyncio
import random
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from service.db.transactions import transaction
from service.domain.records import DeletionRequest
from service.domain.scopes import Scope
from service.domain.states import RequestStatus
from service.errors import Conflict, InvalidRequest
from service.log.events import EventRepository
from service.reports.queries import AuditFilters
from service.reports.search import search
from service.reports.summary import summary
from service.requests.decisions import Decisions
from service.requests.holds import Behind, Holds
from service.requests.lookup import RequestRepository
from service.requests.moves import RequestMoves
from service.webhooks.feed import FeedRepository
from tests.support.clients.signing_in import SAME_ORIGIN, sign_in, token_in
from tests.support.evidence.totals import assert_totals_are_right
from tests.support.service.api_harness import serving as without_unlearner
from tests.support.service.bodies import WRITER, node_body, refused
from tests.support.service.db_harness import MODEL, Database


async def hold(db: Database, request_id: UUID, reason: str = "Needed in a lawsuit.") -> DeletionRequest:
    async with transaction(db.engine) as conn:
        return await Decisions(conn).hold(request_id, db.api_key_id, reason)


async def release(db: Database, request_id: UUID) -> DeletionRequest:
    async with transaction(db.engine) as conn:
        return await Decisions(conn).release(request_id, db.api_key_id)


async def take(db: Database, *ids: UUID) -> set[UUID]:
    async with transaction(db.engine) as conn:
        return await RequestMoves(conn).take(ids)


async def wait(db: Database, waits: dict[UUID, Behind]) -> set[UUID]:
    async with transaction(db.engine) as conn:
        return await Holds(conn).wait(waits)


async def state(db: Database, request_id: UUID) -> DeletionRequest:
    async with transaction(db.engine) as conn:
        found, _ = await RequestRepository(conn).require(request_id)
    return found


async def outbox(db: Database) -> list[UUID]:
    return [row["request_id"] for row in await db.rows("SELECT request_id FROM outbox ORDER BY created_at")]


async def test_a_held_request_is_not_late_and_its_deadline_moves_by_the_time_of_the_hold(db: Database) -> None:
    request_id = await db.accept("1")
    with pytest.raises(InvalidRequest, match="reference"):
        await hold(db, request_id, "About DSR-17.")
    held = await hold(db, request_id)
    assert held.held_at is not None
    # The deadline passed a day after the hold began, which was 40 days ago.
    await db.rows(
        "UPDATE requests SET received_at = received_at - interval '69 days', held_at = held_at - interval '40 days'"
    )
    shown = await state(db, request_id)
    assert (shown.late, shown.status) == (None, RequestStatus.QUEUED)
    async with transaction(db.engine) as conn:
        figures = await summary(conn, MODEL)
        assert await FeedRepository(conn).write_late() == 0
        assert await RequestRepository(conn).oldest(MODEL) is None
        assert await RequestRepository(conn).unclaimed(MODEL, older_than_s=0, limit=5) == []
        assert await RequestRepository(conn).queued(MODEL, {request_id}) == []
        for filters, is_found in (
            (AuditFilters(held=True), True),
            (AuditFilters(held=False), False),
            (AuditFilters(late=True), False),
        ):
            assert bool((await search(conn, filters, None, 5)).entries) is is_found
    assert (figures.open, figures.open_held, figures.open_past_deadline, figures.open_near_deadline) == (1, 1, 0, 0)
    assert (figures.oldest_open, figures.months) == (None, [])
    with pytest.raises(Conflict, match="on hold"):
        async with transaction(db.engine) as conn:
            await Decisions(conn).extend(request_id, db.api_key_id, shown.due_at + timedelta(days=90), "Many.")
    await db.rows("DELETE FROM outbox")
    released = await release(db, request_id)
    assert timedelta(days=40) <= released.due_at - shown.due_at < timedelta(days=40, minutes=5)
    assert (released.held_at, released.late, await outbox(db)) == (None, None, [request_id])
    async with transaction(db.engine) as conn:
        assert await Decisions(conn).log() == 2
    async with transaction(db.engine) as conn:
        events = await EventRepository(conn).of_request(request_id)
    assert [event.type for event in events] == ["held", "released"]
    assert events[0].payload["reason"] == "Needed in a lawsuit."
    assert {event.payload["api_key"] for event in events} == {str(db.api_key_id)}
    feed = await db.rows("SELECT milestone FROM feed ORDER BY number")
    assert [row["milestone"] for row in feed] == ["accepted", "held", "released"]
    await assert_totals_are_right(db)


async def test_the_dashboard_holds_and_releases_and_shows_what_is_held(database_url: str, tmp_path: Path) -> None:
    async with without_unlearner(database_url, tmp_path) as api:
        writer = await api.client(*WRITER)
        request_id = (await writer.post("/deletions", json=node_body("1"))).json()["id"]
        # Neither is enough by itself.
        for scope in (Scope.DELETIONS_WRITE, Scope.AUDIT_READ):
            alone = await api.client(scope)
            refused(await alone.post(f"/deletions/{request_id}/hold", json={"reason": "x"}), 403, "missing-scope")
            refused(await alone.post(f"/deletions/{request_id}/release"), 403, "missing-scope")
        operator, auditor = await api.client_with(None), await api.client_with(None)
        await sign_in(operator, (await api.key(Scope.AUDIT_READ, Scope.DELETIONS_WRITE))[1])
        await sign_in(auditor, (await api.key(Scope.AUDIT_READ))[1])
        page = f"/dashboard/requests/{request_id}"
        fields = {"form_token": token_in((await operator.get(page)).text), "reason": "Needed in a lawsuit."}
        nothing = {**fields, "reason": " "}
        assert (await operator.post(f"{page}/hold", data=nothing, headers=SAME_ORIGIN)).status_code == 422
        assert (await operator.post(f"{page}/hold", data=fields, headers=SAME_ORIGIN)).status_code == 303
        async with transaction(api.engine) as connection:
            assert await Decisions(connection).log() == 1
        shown = (await auditor.get(page)).text
        assert all(text in shown for text in ("On hold", "Needed in a lawsuit.", "it continues once it is released"))
        assert "Release from the hold" not in shown
        assert "Release from the hold" in (await operator.get(page)).text
        for query, is_there in (("held=yes", True), ("held=no", False), ("late=yes", False)):
            assert (request_id in (await auditor.get(f"/dashboard/requests?{query}")).text) is is_there, query
        assert "/dashboard/requests?held=yes" in (await auditor.get("/dashboard")).text
        token = {"form_token": token_in(shown)}
        assert (await auditor.post(f"{page}/release", data=token, headers=SAME_ORIGIN)).status_code == 403
        del fields["reason"]
        assert (await operator.post(f"{page}/release", data=fields, headers=SAME_ORIGIN)).status_code == 303
        assert "held=yes" not in (await auditor.get("/dashboard")).text


async def test_a_request_that_was_late_before_its_hold_is_late_after_it(db: Database) -> None:
    request_id = await db.accept("1")
    await db.rows("UPDATE requests SET received_at = received_at - interval '31 days'")
    assert (await state(db, request_id)).late
    assert (await hold(db, request_id)).late is None
    assert (await release(db, request_id)).late


async def test_only_a_queued_request_is_held_and_only_a_held_one_released(db: Database) -> None:
    request_id = await db.accept("1")
    with pytest.raises(Conflict, match="not on hold"):
        await release(db, request_id)
    await hold(db, request_id)
    with pytest.raises(Conflict, match="already on hold"):
        await hold(db, request_id)
    cancelled = await db.intake.cancel(request_id, db.api_key_id)
    assert (cancelled.status, cancelled.held_at) == (RequestStatus.CANCELLED, None)
    with pytest.raises(Conflict, match="is cancelled"):
        await hold(db, request_id)
    taken = await db.accept("2")
    assert await take(db, taken) == {taken}
    with pytest.raises(Conflict, match="being applied"):
        await hold(db, taken)
    async with transaction(db.engine) as conn:
        await RequestMoves(conn).mark_failed(taken, "It could not be computed.")
    with pytest.raises(Conflict, match="is failed"):
        await hold(db, taken)


async def test_of_a_hold_and_the_unlearner_exactly_one_gets_the_request(db: Database) -> None:
    ids = [await db.accept(str(number)) for number in range(12)]

    async def held(request_id: UUID) -> bool:
        await asyncio.sleep(random.uniform(0, 0.02))
        try:
            return (await hold(db, request_id)).held_at is not None
        except Conflict:
            return False

    async def taken(part: list[UUID]) -> set[UUID]:
        await asyncio.sleep(random.uniform(0, 0.02))
        return await take(db, *part)

    holds, *batches = await asyncio.gather(
        asyncio.gather(*map(held, ids)), *(taken(ids[at : at + 3]) for at in range(0, 12, 3))
    )
    by_unlearner = set[UUID]().union(*batches)
    for request_id, is_held in zip(ids, holds, strict=True):
        assert is_held is (request_id not in by_unlearner)
        assert ((await state(db, request_id)).held_at is not None) is is_held


async def test_a_hold_after_a_taking_that_a_crash_undid_stops_the_batch(db: Database) -> None:
    request_id = await db.accept("1")
    await hold(db, request_id)
    with pytest.raises(Conflict, match="not queued any more"):
        await db.batch([request_id])
    assert (await state(db, request_id)).status is RequestStatus.QUEUED


async def test_what_waits_goes_on_in_order_when_the_hold_ends(db: Database) -> None:
    held, second, third, other = [await db.accept(name) for name in ("1", "1", "2", "9")]
    await hold(db, held)
    await take(db, second, third, other)
    assert await wait(db, {second: Behind(held, held), third: Behind(held, second)}) == {second, third}
    await db.rows("DELETE FROM outbox")
    async with transaction(db.engine) as conn:
        requests = RequestRepository(conn)
        assert [one.id for one in await requests.queued(MODEL, {held, second, third, other})] == [other]
        assert await take(db, second, third) == set()
        assert {request.id: root for request, root in await Holds(conn).obstacles(MODEL)} == dict.fromkeys(
            (held, second, third), held
        )
    # One that waits is held in its own right, and goes on with its own release.
    await hold(db, third)
    await release(db, held)
    assert await outbox(db) == [held, second]
    assert (await state(db, second)).waits_for is None
    await release(db, third)
    assert await outbox(db) == [held, second, third]
    # Free again, they may be taken; nothing waits for what is no longer held.
    assert await take(db, held, second, third) == {held, second, third}
    assert await wait(db, {second: Behind(held, held)}) == set()


async def test_one_that_goes_on_keeps_no_later_one_waiting(db: Database) -> None:
    held, between, second, third = [await db.accept(name) for name in ("1", "1", "1", "2")]
    await hold(db, held)
    await take(db, second, third)
    # The unlearner saw `between` waiting, but it was cancelled meanwhile.
    await db.intake.cancel(between, db.api_key_id)
    assert await wait(db, {second: Behind(held, between), third: Behind(held, second)}) == set()


async def test_when_one_that_waits_is_cancelled_those_behind_it_are_looked_at_again(db: Database) -> None:
    held, between, last = [await db.accept(name) for name in ("1", "1", "2")]
    await hold(db, held)
    await take(db, between, last)
    await wait(db, {between: Behind(held, held), last: Behind(held, between)})
    await db.rows("DELETE FROM outbox")
    await db.intake.cancel(between, db.api_key_id)
    assert await outbox(db) == [last]
    assert (await state(db, last)).waits_for is None
    await take(db, last)
    assert await wait(db, {last: Behind(held, held)}) == {last}
    await db.intake.cancel(held, db.api_key_id)
    assert await outbox(db) == [last]


async def test_nothing_is_left_waiting_for_a_hold_that_ended_at_the_same_time(db: Database) -> None:
    draw = random.Random(7)
    for _ in range(12):
        held, *others = [await db.accept("1") for _ in range(4)]
        await hold(db, held)
        await take(db, *others)

        async def later(action: Awaitable[object]) -> None:
            await asyncio.sleep(draw.uniform(0, 0.01))
            await action

        end = release(db, held) if draw.random() < 0.5 else db.intake.cancel(held, db.api_key_id)
        waits = {one: Behind(held, held if one == others[0] else others[0]) for one in others}
        await asyncio.gather(later(wait(db, waits)), later(end))
        stuck = "SELECT r.id FROM requests r JOIN requests h ON h.id = r.waits_for WHERE h.held_at IS NULL"
        assert await db.rows(stuck) == []
