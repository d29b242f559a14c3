import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from service.access.own_slots import OwnSlots, ReservedKey
from service.access.request_keys import decrypt
from service.db.transactions import transaction
from service.domain.drills import NewDrill
from service.domain.kinds import RequestKind
from service.domain.records import KeySlot, Targets
from service.domain.states import RequestStatus
from service.errors import Conflict, InvalidRequest, QueueFull, Unavailable
from service.requests import callers
from service.requests.drill_rows import DrillOpen
from service.requests.intake import Accepted, Intake
from tests.support.service.db_harness import MODEL, Database, accepted_ids, is_waiting, open_database, until


async def _stored(db: Database) -> set[UUID]:
    return {row["id"] for row in await db.rows("SELECT id FROM requests")}


async def test_an_accepted_request_is_stored_with_its_outbox_row_and_its_key(db: Database) -> None:
    new = db.new("12", "57")
    accepted = await db.intake.accept(new)
    assert (accepted.targets, accepted.replayed) == (new.targets, False)
    request = accepted.request
    [row] = await db.rows("SELECT * FROM requests")
    assert (request.id, request.received_at) == (row["id"], row["received_at"])
    assert (request.status, request.kind, request.count) == (RequestStatus.QUEUED, RequestKind.NODE, 2)
    assert (request.model, request.reference, request.api_key_id) == (MODEL, "DSR-17", db.api_key_id)
    key = db.keys.get(request.id, KeySlot(row["key_file"], row["key_place"]))
    assert key is not None
    assert decrypt(row["ciphertext"], key, request.id) == new.targets
    assert [row["request_id"] for row in await db.rows("SELECT * FROM outbox")] == [request.id]


async def test_no_id_is_in_the_database_in_clear(db: Database) -> None:
    secret = "an-external-id-of-a-person"
    await db.intake.accept(db.new(secret, key="k"))
    for table in ("requests", "outbox"):
        assert secret not in str(await db.rows(f"SELECT {table}::text AS row FROM {table}"))
        assert secret.encode().hex() not in str(await db.rows(f"SELECT {table}::text AS row FROM {table}"))


async def test_concurrent_callers_share_commits_and_syncs(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[int] = []
    reserve = OwnSlots.reserve

    def counted(slots: OwnSlots, ids: list[UUID]) -> dict[UUID, ReservedKey]:
        syncs.append(len(ids))
        return reserve(slots, ids)

    monkeypatch.setattr(OwnSlots, "reserve", counted)
    answers = await asyncio.gather(*(db.intake.accept(db.new(str(n))) for n in range(100)))
    assert len(accepted_ids(answers)) == 100
    assert await _stored(db) == accepted_ids(answers) == db.kept().keys()
    assert await db.value("SELECT count(*) FROM outbox") == 100
    transactions = await db.value("SELECT count(DISTINCT xmin::text) FROM requests")
    assert transactions == len(syncs)
    assert transactions <= 3


async def test_the_same_key_and_body_get_the_same_request_and_salts(db: Database) -> None:
    first = await db.intake.accept(db.new("12", key="k"))
    other_salts = replace(db.new("12", key="k"), targets=Targets(nodes=("12",), node_salts={"12": "other"}))
    again = await db.intake.accept(other_salts)
    assert again.request == first.request
    assert again.targets == first.targets
    assert (first.replayed, again.replayed) == (False, True)
    assert await _stored(db) == {first.request.id} == db.kept().keys()


async def test_the_same_key_and_another_body_conflict(db: Database) -> None:
    first = await db.intake.accept(db.new("12", key="k"))
    with pytest.raises(Conflict, match=str(first.request.id)):
        await db.intake.accept(db.new("13", key="k", digest=bytes([1]) * 32))
    assert await _stored(db) == {first.request.id} == db.kept().keys()


async def test_an_idempotency_key_belongs_to_its_api_key(db: Database) -> None:
    await db.rows(
        "INSERT INTO api_keys (id, name, scopes, hash) VALUES (:id, 'other', '{audit:read}', :hash)",
        id=(other := uuid4()),
        hash=bytes([7]) * 32,
    )
    await db.intake.accept(db.new("12", key="k"))
    accepted = await db.intake.accept(replace(db.new("12", key="k"), api_key_id=other))
    assert not accepted.replayed


async def test_repetitions_within_one_group_get_one_request(db: Database) -> None:
    calls = [db.intake.accept(db.new("12", key="k")) for _ in range(10)]
    calls += [db.intake.accept(db.new("13", key="k", digest=bytes([1]) * 32)) for _ in range(5)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    accepted = [answer for answer in answers[:10] if isinstance(answer, Accepted)]
    assert len(accepted) == 10
    assert len(accepted_ids(accepted)) == 1
    assert [answer.replayed for answer in accepted].count(False) == 1
    assert len({str(answer.targets) for answer in accepted}) == 1
    assert all(isinstance(answer, Conflict) for answer in answers[10:])
    assert await _stored(db) == accepted_ids(accepted) == db.kept().keys()


async def test_repetitions_from_two_processes_get_one_request(db: Database) -> None:
    async with AsyncExitStack() as stack:
        slots = stack.enter_context(OwnSlots.open(db.slots.folder))
        other = Intake(db.engine, slots, db.keyring, max_queued_nodes=None)
        for n in range(10):
            name = f"k{n}"
            answers = await asyncio.gather(
                *(intake.accept(db.new("12", key=name)) for intake in (db.intake, other) for _ in range(3))
            )
            assert len(accepted_ids(answers)) == 1
            assert [answer.replayed for answer in answers].count(False) == 1
        assert await _stored(db) == db.kept().keys()


async def test_a_key_taken_by_another_process_during_the_commit_is_a_repetition(db: Database) -> None:
    with OwnSlots.open(db.slots.folder) as slots:
        other = Intake(db.engine, slots, db.keyring, max_queued_nodes=None)
        async with transaction(db.engine) as blocking:
            # The other process' insert, not yet committed.
            await blocking.execute(
                text(
                    "INSERT INTO requests (id, model, kind, count, ciphertext, api_key_id, idempotency_key,"
                    " body_digest) VALUES (:id, :model, 'node', 1, '\\x01', :key, 'k', :digest)"
                ),
                {"id": (winner := uuid4()), "model": MODEL, "key": db.api_key_id, "digest": bytes(32)},
            )
            same = asyncio.create_task(other.accept(db.new("12", key="k")))
            await until(lambda: is_waiting(db))
        accepted = await same
        assert (accepted.request.id, accepted.replayed, accepted.targets) == (winner, True, None)
        assert db.kept() == {}
        await other.close()


async def test_a_caller_that_goes_away_does_not_disturb_the_others(db: Database) -> None:
    async with transaction(db.engine) as blocking:
        await blocking.execute(text("LOCK TABLE requests IN SHARE MODE"))
        calls = [asyncio.create_task(db.intake.accept(db.new(str(n)))) for n in range(30)]
        await until(lambda: is_waiting(db))
        for call in calls[::3]:
            call.cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    others = [answer for answer in answers if isinstance(answer, Accepted)]
    assert len(others) == 20
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[::3])
    assert accepted_ids(others) <= await _stored(db) == db.kept().keys()
    assert (await db.intake.accept(db.new("after"))).request.id in await _stored(db)


@pytest.mark.parametrize("reference", ["nul \u0000", "half \ud800"])
async def test_text_that_cannot_be_stored_fails_alone(db: Database, reference: str) -> None:
    calls = [db.intake.accept(db.new(str(n))) for n in range(6)]
    calls.insert(3, db.intake.accept(replace(db.new("bad"), reference=reference)))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers[3], InvalidRequest)
    accepted = [answer for answer in answers if isinstance(answer, Accepted)]
    assert len(accepted) == 6
    assert await _stored(db) == accepted_ids(accepted) == db.kept().keys()


@pytest.mark.parametrize("fresh_seconds", [3600.0, -1.0], ids=["counts stay fresh", "counts are old at once"])
async def test_a_full_queue_takes_what_fits_and_answers_repetitions(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_seconds: float
) -> None:
    monkeypatch.setattr(callers, "FRESH_SECONDS", fresh_seconds)
    async with open_database(database_url, tmp_path, max_queued_nodes=5) as db:
        first = await db.intake.accept(db.new("1", "2", "3", key="k"))
        calls = [
            db.intake.accept(db.new("4", "5")),
            db.intake.accept(db.new("6")),
            db.intake.accept(db.new("7", key="l")),
        ]
        calls += [db.intake.accept(db.new("7", key="l")), db.intake.accept(db.new("1", "2", "3", key="k"))]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Accepted, QueueFull, QueueFull, QueueFull, Accepted]
        assert isinstance(answers[1], QueueFull)
        assert answers[1].extra["retry_after"] > 0
        assert await db.value("SELECT sum(count) FROM requests") == 5
        assert len(db.kept().keys()) == 2
        assert answers[4] == replace(first, replayed=True)


async def test_a_key_whose_first_use_was_refused_is_free_for_the_next_in_its_group(db: Database) -> None:
    other = NewDrill(1, after=None)
    await db.intake.accept(replace(db.new("1"), drill=other))
    drill = replace(db.new("2", key="monday"), drill=NewDrill(2, after=None))
    asked = (drill, drill, db.new("3", key="monday", digest=bytes([1] * 32)), db.new("3", key="monday"))
    answers = await asyncio.gather(*map(db.intake.accept, asked), return_exceptions=True)
    # The same as in sequence: the open drill twice, then a request, then another body.
    assert [type(answer) for answer in answers] == [DrillOpen, DrillOpen, Accepted, Conflict]
    assert len(await _stored(db)) == 2


async def test_keys_that_the_disk_refuses_leave_nothing_behind(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(slots: OwnSlots, ids: list[UUID]) -> dict[UUID, ReservedKey]:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(OwnSlots, "reserve", refuse)
        answers = await asyncio.gather(*(db.intake.accept(db.new(str(n))) for n in range(3)), return_exceptions=True)
    assert all(isinstance(answer, Unavailable) and "No space" in answer.detail for answer in answers)
    assert await _stored(db) == set()
    assert (await db.intake.accept(db.new("1"))).request.id in await _stored(db)


async def test_closing_finishes_what_was_begun_and_takes_no_more(db: Database) -> None:
    calls = [asyncio.create_task(db.intake.accept(db.new(str(n)))) for n in range(5)]
    await asyncio.wait(calls, timeout=0)
    await db.intake.close()
    assert all(call.done() for call in calls)
    assert await _stored(db) == accepted_ids([call.result() for call in calls])
    with pytest.raises(Unavailable, match="shutting down"):
        await db.intake.accept(db.new("late"))
