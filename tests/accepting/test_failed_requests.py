"""Failed requests stay open until they are handled, and then their targets are no longer kept."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from service.access.key_disposal import RequestKeyRepository, UnneededKeys
from service.access.keyring import Keyring
from service.access.request_keys import RequestKeys
from service.db.clock import now
from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.records import DeletionRequest, Tombstone
from service.domain.scopes import Scope
from service.domain.states import EventType, RequestStatus
from service.errors import Conflict, InvalidRequest, NotFound
from service.log.events import Event, EventRepository
from service.reports.summary import summary
from service.requests.decisions import Decisions, FailedRequests, FollowUp
from service.requests.lookup import RequestRepository
from service.requests.moves import SEND_ANEW, RequestMoves
from service.requests.tombstones import TombstoneLookup, TombstoneRepository
from service.settings import Settings
from tests.support.clients.signing_in import SAME_ORIGIN, sign_in, token_in
from tests.support.evidence.totals import assert_totals_are_right
from tests.support.service.api_harness import serving as without_unlearner
from tests.support.service.bodies import WRITER, node_body
from tests.support.service.db_harness import MODEL, Database, Said, until
from tests.support.service.running import running


class World:
    """The unlearner's work on requests other than deleting, over a database."""

    def __init__(self, db: Database, home: Path) -> None:
        self.db = db
        self.keyring = Keyring.open(home / "vault")
        lookup = TombstoneLookup(db.engine, self.keyring, MODEL)
        failed = FailedRequests(db.engine, MODEL, db.keys, lookup)
        self.follow_up = FollowUp(db.engine, failed, timedelta(days=90))

    async def failed(self, *nodes: str) -> UUID:
        """Return the id of a failed request."""
        request_id = await self.db.accept(*nodes)
        async with transaction(self.db.engine) as conn:
            await RequestMoves(conn).mark_failed(request_id, "It could not be computed.")
        return request_id

    async def deleted(self, *nodes: str, version: int = 1, complete: bool = True) -> UUID:
        """Return the id of a request that has deleted `nodes`."""
        request_id = await self.db.accept(*nodes)
        batch = await self.db.applied([request_id], version)
        hashes = [self.keyring.tombstone_hash(MODEL, RequestKind.NODE, node) for node in nodes]
        laid = [Tombstone(RequestKind.NODE, digest, number, request_id) for number, digest in hashes]
        async with transaction(self.db.engine) as conn:
            await TombstoneRepository(conn).insert(MODEL, laid, self.keyring.fingerprints())
        if complete:
            await self.complete(request_id, batch)
        return request_id

    async def complete(self, request_id: UUID, batch: UUID) -> None:
        await self.db.rows("UPDATE versions SET finished_at = now(), span_residual = 0 WHERE id = :id", id=batch)
        async with transaction(self.db.engine) as conn:
            await RequestMoves(conn).mark_completed({request_id: Said()})

    async def state(self, request_id: UUID) -> DeletionRequest:
        async with transaction(self.db.engine) as conn:
            found = await RequestRepository(conn).get(request_id)
        assert found is not None
        return found[0]

    async def events(self, request_id: UUID) -> list[Event]:
        async with transaction(self.db.engine) as conn:
            return await EventRepository(conn).of_request(request_id)

    async def open_failed(self) -> int:
        async with transaction(self.db.engine) as conn:
            return (await summary(conn, MODEL)).open_failed

    async def handle(self, request_id: UUID, reason: str = "Withdrawn by letter.") -> DeletionRequest:
        async with transaction(self.db.engine) as conn:
            return await Decisions(conn).handle(request_id, self.db.api_key_id, reason)

    async def extend(self, request_id: UUID, due_at: datetime, reason: str = "Many at once.") -> DeletionRequest:
        async with transaction(self.db.engine) as conn:
            return await Decisions(conn).extend(request_id, self.db.api_key_id, due_at, reason)


@pytest.fixture
async def world(db: Database, tmp_path: Path) -> World:
    return World(db, tmp_path)


async def test_one_that_failed_is_open_with_its_deadline_until_somebody_says_how_it_was_handled(world: World) -> None:
    request_id = await world.failed("1")
    async with transaction(world.db.engine) as conn:
        [waiting] = await RequestRepository(conn).open(MODEL, limit=5)
    assert (waiting.id, waiting.ended_at, waiting.due_at - waiting.received_at) == (
        request_id,
        None,
        timedelta(days=30),
    )
    assert await world.open_failed() == 1
    handled = await world.handle(request_id)
    assert (handled.status, handled.handled_at, handled.late) == (RequestStatus.FAILED, handled.ended_at, False)
    assert await world.open_failed() == 0
    with pytest.raises(Conflict, match="already handled"):
        await world.handle(request_id)
    with pytest.raises(Conflict, match="no longer kept"):
        await world.db.intake.retry(request_id, world.db.api_key_id)
    await assert_totals_are_right(world.db)


async def test_a_decision_is_an_event_of_the_log_once_however_many_unlearners_write_it(world: World) -> None:
    request_id = await world.failed("1")
    later = (await world.state(request_id)).due_at + timedelta(days=60)
    await world.extend(request_id, later)
    await world.handle(request_id)
    await asyncio.gather(*(world.follow_up.look() for _ in range(3)))
    failed, extended, handled = await world.events(request_id)
    assert [one.type for one in (failed, extended, handled)] == [
        EventType.FAILED,
        EventType.EXTENDED,
        EventType.HANDLED,
    ]
    assert (extended.payload["reason"], handled.payload["reason"]) == ("Many at once.", "Withdrawn by letter.")
    assert datetime.fromisoformat(extended.payload["due_at"]) == later
    assert handled.payload["api_key"] == str(world.db.api_key_id)
    assert await world.db.value("SELECT count(*) FROM leaves") == 3


async def test_what_is_handled_is_forgotten(world: World) -> None:
    request_id = await world.failed("1")
    await world.handle(request_id)
    assert await world.db.value("SELECT ciphertext FROM requests") is None
    await UnneededKeys(world.db.engine, world.db.keys).destroy_dropped()
    assert world.db.kept() == {}


async def test_a_later_request_for_the_same_handles_it_and_both_name_each_other(world: World) -> None:
    request_id, other = await world.failed("1", "2"), await world.failed("1", "3")
    await world.follow_up.look()
    assert await world.open_failed() == 2
    first = await world.deleted("1", version=1)
    await world.follow_up.look()
    # Part of each is deleted, and an incomplete one is not handled.
    assert await world.open_failed() == 2
    second = await world.deleted("2", version=2)
    await world.follow_up.look()
    handled = await world.state(request_id)
    assert (handled.status, handled.handled_by) == (RequestStatus.FAILED, second)
    assert (await world.state(other)).handled_at is None
    async with transaction(world.db.engine) as conn:
        assert await RequestRepository(conn).handled_by(second) == [request_id]
    event = (await world.events(request_id))[-1]
    assert (event.type, event.payload) == (EventType.HANDLED, {"deleted_by": [str(second), str(first)]})
    assert await world.db.value("SELECT ciphertext FROM requests WHERE id = :id", id=request_id) is None
    await assert_totals_are_right(world.db)


async def test_one_is_not_handled_before_what_deletes_the_same_is_completed(world: World) -> None:
    request_id = await world.failed("1")
    later = await world.deleted("1", complete=False)
    await world.follow_up.look()
    assert (await world.state(request_id)).handled_at is None
    await world.complete(later, (await world.state(later)).batch_id or uuid4())
    await world.follow_up.look()
    assert (await world.state(request_id)).handled_by == later


async def test_more_time_is_given_before_the_deadline_alone(world: World) -> None:
    request_id, late, done = await world.db.accept("1"), await world.db.accept("2"), await world.deleted("3")
    due_at = (await world.state(request_id)).due_at
    await world.db.rows("UPDATE requests SET received_at = received_at - interval '31 days' WHERE id = :id", id=late)
    async with transaction(world.db.engine) as conn:
        at = await now(conn)
    for one, until_when, said in (
        (late, at + timedelta(days=9), "past its deadline"),
        (done, at + timedelta(days=99), "has ended"),
        (request_id, due_at, "is already due at"),
    ):
        with pytest.raises(Conflict, match=said):
            await world.extend(one, until_when)
    extended = await world.extend(request_id, due_at + timedelta(days=60))
    assert (extended.due_at, extended.late) == (due_at + timedelta(days=60), None)
    with pytest.raises(NotFound):
        await world.extend(uuid4(), due_at)


async def test_the_log_takes_no_reason_that_has_the_reference(world: World) -> None:
    request_id = await world.failed("1")
    for reason in ("About dsr-17.", "DSR-17"):
        with pytest.raises(InvalidRequest, match="reference"):
            await world.handle(request_id, reason)
    await world.handle(request_id, "About DSR-170.")


async def test_a_deadline_is_the_one_in_force_at_receipt(world: World) -> None:
    before = await world.db.accept("1")
    await world.db.rows("UPDATE service_settings SET deadline_days = 0.5")
    after = await world.db.accept("2")
    for request_id, allowed in ((before, timedelta(days=30)), (after, timedelta(hours=12))):
        found = await world.state(request_id)
        assert found.due_at - found.received_at == allowed
    async with transaction(world.db.engine) as conn:
        assert (await summary(conn, MODEL)).deadline_days == 0.5


async def test_the_dashboard_says_what_failed_until_it_is_handled_there(database_url: str, tmp_path: Path) -> None:
    async with without_unlearner(database_url, tmp_path) as api:
        writer = await api.client(*WRITER)
        accepted = (await writer.post("/deletions", json=node_body("1", reference="DSR-17"))).json()
        page = f"/dashboard/requests/{accepted['id']}"
        operator, auditor = await api.client_with(None), await api.client_with(None)
        await sign_in(operator, (await api.key(Scope.AUDIT_READ, Scope.DELETIONS_WRITE))[1])
        await sign_in(auditor, (await api.key(Scope.AUDIT_READ))[1])
        fields = {"form_token": token_in((await operator.get(page)).text), "reason": "There are many."}
        extended = await operator.post(f"{page}/extend", data={**fields, "day": "2099-01-31"}, headers=SAME_ORIGIN)
        assert extended.status_code == 303
        assert "2099-01-31 23:59:59" in (await operator.get(page)).text
        async with transaction(api.engine) as connection:
            await RequestMoves(connection).mark_failed(UUID(accepted["id"]), "It could not be computed.")
        overview = (await auditor.get("/dashboard")).text
        assert "1 failed request needs attention." in overview
        assert "Requests are due within 30 days" in overview
        due = "UPDATE requests SET due_at = received_at + CAST(:time AS interval)"
        async with transaction(api.engine) as connection:
            await connection.execute(text(due), {"time": timedelta(microseconds=1)})
        # One request of this model is both failed and late.
        assert "1 request is late." in (await auditor.get("/dashboard")).text
        async with transaction(api.engine) as connection:
            await connection.execute(text(due), {"time": timedelta(days=30)})
        assert "DSR-17" in overview
        assert (
            "A later request that deletes the same data settles this one automatically."
            in (await operator.get(page)).text
        )
        # A reader gets no form, and a reader's form is refused.
        shown = (await auditor.get(page)).text
        assert "It could not be computed." in shown
        assert "Mark as handled" not in shown
        log_out = token_in(shown)
        for path, day in (("handle", {}), ("extend", {"day": "2099-01-31"})):
            sent = {"form_token": log_out, "reason": "x", **day}
            assert (await auditor.post(f"{page}/{path}", data=sent, headers=SAME_ORIGIN)).status_code == 403
        # Without the key to its ids, no later request is known to delete the same; one place says what to do then.
        async with transaction(api.engine) as connection:
            slot = await RequestKeyRepository(connection).slot(UUID(accepted["id"]))
        assert slot is not None
        RequestKeys(tmp_path / "keys" / "requests").destroy({UUID(accepted["id"]): slot})
        assert SEND_ANEW in (await operator.get(page)).text
        assert "settles this one automatically" not in (await operator.get(page)).text
        nothing = {**fields, "reason": " "}
        assert (await operator.post(f"{page}/handle", data=nothing, headers=SAME_ORIGIN)).status_code == 422
        handled = await operator.post(f"{page}/handle", data=fields, headers=SAME_ORIGIN)
        assert handled.status_code == 303
        assert "Nothing is open." in (await auditor.get("/dashboard")).text
        assert "Mark as handled" not in (await operator.get(page)).text
        for query, is_there in (("open=yes", False), ("late=no", True), ("late=yes", False), ("open=no", True)):
            assert (accepted["id"] in (await auditor.get(f"/dashboard/requests?{query}")).text) is is_there, query


@pytest.mark.ci
async def test_a_running_lethe_handles_what_failed_and_reports_it_until_then(
    settings: Settings, database_url: str
) -> None:
    async with running(settings) as lethe:
        await until(lethe.is_ready)
    async with without_unlearner(database_url, settings.home, model="small") as api:
        writer = await api.client(Scope.DELETIONS_WRITE)
        accepted = (await writer.post("/deletions", json=node_body("5", "8"))).json()
        async with transaction(api.engine) as connection:
            await RequestMoves(connection).mark_failed(UUID(accepted["id"]), "It could not be computed.")
    async with running(settings) as lethe:
        await until(lethe.is_ready)

        async def is_reported() -> bool:
            return 'lethe_open_deletions_failed{process="unlearner"} 1.0' in await lethe.metrics()

        await until(is_reported)
        later = await lethe.delete("5", "8", "9")

        async def is_handled() -> bool:
            return (await lethe.state(accepted))["handled_by"] == later["id"]

        await until(is_handled)
        assert (await lethe.state(later))["handles"] == [accepted["id"]]
        receipt = await lethe.receipt(later)
        assert receipt["summary"]["status"] == "completed"
