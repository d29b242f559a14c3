"""Pointers, tombstones, outbox, events and API keys."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from service.access.api_keys import ApiKeyRepository
from service.access.keyring import Keyring
from service.db.engine import create_engine
from service.db.notifications import listen
from service.db.roles import API_ROLE
from service.db.transactions import transaction
from service.domain.kinds import Part, RequestKind
from service.domain.records import Tombstone
from service.domain.scopes import Scope
from service.domain.states import EventType
from service.errors import Conflict, KeyMissing, LeaseLost, StateMismatch
from service.log.events import EventRepository
from service.predictions.version_rows import BatchRepository, PointerRepository, VersionRepository
from service.requests.delivery import OutboxRepository
from service.requests.queued_joins import QueuedJoins, joins_of
from service.requests.tombstones import TombstoneRepository
from service.unlearner.context import PrivacyLedger
from tests.support.service.db_harness import (
    DETAILS,
    MODEL,
    NORMS,
    POINTER,
    Database,
    Said,
    made,
    next_pointer,
)


async def test_a_pointer_advances_from_the_expected_version_only(db: Database) -> None:
    moved = next_pointer(POINTER, 3)
    async with transaction(db.engine) as conn:
        pointers = PointerRepository(conn)
        await pointers.advance(0, moved)
        assert await pointers.read(MODEL) == moved
        with pytest.raises(StateMismatch, match="version 1"):
            await pointers.advance(0, next_pointer(POINTER, 3))
        with pytest.raises(StateMismatch, match="no version"):
            await pointers.advance(0, replace(moved, model="unknown"))
        with pytest.raises(LeaseLost):
            await pointers.advance(1, next_pointer(moved, 2))
        assert await pointers.read(MODEL) == moved


async def test_of_two_writers_at_the_same_version_one_advances(db: Database) -> None:
    async def advance(fencing: int) -> bool:
        try:
            async with transaction(db.engine) as conn:
                await PointerRepository(conn).advance(0, next_pointer(POINTER, fencing))
        except (StateMismatch, LeaseLost):
            return False
        return True

    assert sorted(await asyncio.gather(advance(1), advance(2))) == [False, True]


async def test_a_model_is_created_once(db: Database) -> None:
    async with transaction(db.engine) as conn:
        with pytest.raises(Conflict):
            await PointerRepository(conn).create(next_pointer(POINTER, 1))
        assert await PointerRepository(conn).read(MODEL) == POINTER
        assert await PointerRepository(conn).read("other") is None


async def test_a_tombstone_keeps_the_first_request_unless_its_node_is_to_join_again(
    db: Database, tmp_path: Path
) -> None:
    keyring = Keyring.open(tmp_path / "keys")
    first, second = await db.accept(), await db.accept()

    def tombstone(node: str, request_id: object) -> Tombstone:
        number, digest = keyring.tombstone_hash(MODEL, RequestKind.NODE, node)
        assert request_id in (first, second)
        return Tombstone(RequestKind.NODE, digest, number, first if request_id == first else second)

    async with transaction(db.engine) as conn:
        tombstones = TombstoneRepository(conn)
        await QueuedJoins(conn).insert(joins_of(keyring, MODEL, second, ["1"]))
        await tombstones.insert(MODEL, [], keyring.fingerprints())
        assert await tombstones.key_fingerprints() == {}
        await tombstones.insert(MODEL, [tombstone("1", first), tombstone("2", first)], keyring.fingerprints())
        await tombstones.insert(MODEL, [tombstone("2", second), tombstone("3", second)], keyring.fingerprints())
        await tombstones.insert(MODEL, [tombstone("1", second)], keyring.fingerprints())
        wanted = keyring.tombstone_hashes(MODEL, Part.NODES, ["1", "2", "3", "4"])
        found = await tombstones.find(wanted)
        assert {wanted[digest]: request_id for digest, request_id in found.items()} == {
            "1": second,
            "2": first,
            "3": second,
        }
        assert await tombstones.find([]) == {}
        registered = await tombstones.key_fingerprints()
    keyring.check(registered)
    with pytest.raises(KeyMissing):
        Keyring.open(tmp_path / "another").check(registered)


@pytest.mark.parametrize(
    ("changes", "details", "counted"),
    [
        ({"deleted_labels": 1}, {}, 2),
        ({}, {"features_joined": 1}, 2),
        ({}, {"labels_joined": 1}, 2),
        ({}, {"nodes_joined": 1, "edges_joined": 1}, 0),
    ],
)
async def test_the_ledger_counts_from_withdrawn_labels_and_corrections_on(
    changes: dict[str, Any], details: dict[str, Any], counted: int, db: Database
) -> None:
    promised: dict[str, Any] = {"publication_epsilon": 1.0, "publication_delta": 1e-4, "publications_planned": 9}
    promised |= {"publication_mu": 0.1, "commitment_salt": "ab" * 32}
    ledger, publication = PrivacyLedger(), SimpleNamespace(mechanism=SimpleNamespace(budget=1.0))
    requests = [await db.accept(), await db.accept(), await db.accept()]
    async with transaction(db.engine) as conn:
        for number in (1, 2, 3):
            those, of_batch = (changes, details) if number == 2 else ({}, {})
            version = made(number, **{"deleted_nodes": 0, "directions_removed": 0} | promised | those)
            await VersionRepository(conn).insert(version)
            await BatchRepository(conn).insert(version, replace(DETAILS, **of_batch), {requests[number - 1]: NORMS})
            await VersionRepository(conn).finish(version.id, span_residual=0.0, durations_ms={})
        await ledger.load(conn, MODEL)
    assert ledger.standing(publication).publications == counted  # type: ignore[arg-type]


async def test_relays_take_different_requests_oldest_first(db: Database) -> None:
    ids = [await db.accept(str(n)) for n in range(4)]
    async with transaction(db.engine) as first, transaction(db.engine) as second:
        assert list(await OutboxRepository(first).take(MODEL, 3)) == ids[:3]
        assert list(await OutboxRepository(second).take(MODEL, 3)) == ids[3:]
        assert await OutboxRepository(second).take("other", 3) == {}
        await OutboxRepository(first).delete(ids[:3])
    async with transaction(db.engine) as conn:
        assert list(await OutboxRepository(conn).take(MODEL, 3)) == ids[3:]


async def test_an_accepted_request_wakes_the_relay(db: Database) -> None:
    async with listen(db.engine) as wakeup:
        assert not await wakeup.wait(0)
        await db.accept()
        assert await wakeup.wait(20)
        assert not await wakeup.wait(0)
        await asyncio.gather(*(db.intake.accept(db.new(str(n))) for n in range(20)))
        assert await wakeup.wait(20)


async def test_what_listens_works_with_the_settings_and_the_role_of_the_pool(db: Database) -> None:
    facts = "SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings WHERE source = ANY($1)"
    sources = ["client", "session"]
    engine = create_engine(db.url, role=API_ROLE)
    try:
        async with engine.connect() as pooled, listen(engine) as listening:
            driver = (await pooled.get_raw_connection()).driver_connection
            assert driver is not None
            settings = await driver.fetchval(facts, sources)
            assert "default_transaction_isolation=read committed" in settings
            assert await listening.value(facts, sources) == settings
            assert await listening.value("SELECT current_user") == API_ROLE
    finally:
        await engine.dispose()


async def test_events_are_kept_in_order_with_their_content(db: Database) -> None:
    request_id = await db.accept()
    payload = {"norm": 0.25, "nodes": ["a"], "none": None}
    async with transaction(db.engine) as conn:
        events = EventRepository(conn)
        [first] = await events.append_many(EventType.APPLIED, {request_id: Said(**payload)})
        [second] = await events.append_many(EventType.REPAIRED, {request_id: Said()})
        found = await events.of_request(request_id)
        assert await events.of_request(uuid4()) == []
    assert [event.id for event in found] == [first, second]
    assert [event.type for event in found] == [EventType.APPLIED, EventType.REPAIRED]
    assert found[0].payload == payload
    assert first < second


async def test_an_api_key_is_found_by_its_hash_until_it_is_revoked(db: Database, tmp_path: Path) -> None:
    digest = Keyring.open(tmp_path / "keys").api_key_hash("lethe_text")
    key_id = uuid4()
    async with transaction(db.engine) as conn:
        keys = ApiKeyRepository(conn)
        made = await keys.create(key_id, "auditor", {Scope.AUDIT_READ, Scope.DELETIONS_READ}, digest)
        assert (made.id, made.name, made.revoked_at) == (key_id, "auditor", None)
        assert made.scopes == {Scope.AUDIT_READ, Scope.DELETIONS_READ}
        assert await keys.find_by_hash(digest) == made
        assert await keys.find_by_hash(bytes(31) + b"x") is None
        revoked = await keys.revoke(key_id)
        assert revoked is not None
        assert revoked.revoked_at is not None
        assert await keys.revoke(key_id) == revoked
        assert await keys.revoke(uuid4()) is None
        assert await keys.find_by_hash(digest) is None
        assert [key.name for key in await keys.list()] == ["tests", "auditor"]


async def test_a_rotated_key_has_two_texts_until_the_overlap_ends(db: Database) -> None:
    first, second, third = (bytes([n]) * 32 for n in (1, 2, 3))
    a_year, a_week = datetime.now(UTC) + timedelta(days=365), timedelta(days=7)
    async with transaction(db.engine) as conn:
        keys = ApiKeyRepository(conn)
        made = await keys.create(uuid4(), "shop", {Scope.DELETIONS_WRITE}, first, kinds={RequestKind.NODE})
        assert made.kinds == frozenset({RequestKind.NODE})
        assert made.expires_at is None
        rotated = await keys.rotate(made.id, second, overlap=a_week, expires_at=a_year)
        assert rotated is not None
        assert (rotated.id, rotated.name, rotated.kinds) == (made.id, "shop", made.kinds)
        valid = await keys.valid()
        assert {first, second} < set(valid)
        assert (valid[second].expires_at, valid[first].expires_at) == (a_year, rotated.previous_until)
        # The previous text does not outlive the key.
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        shorter = await keys.rotate(made.id, first, overlap=a_week, expires_at=tomorrow)
        assert shorter is not None
        assert shorter.previous_until == tomorrow
        await keys.rotate(made.id, second, overlap=a_week, expires_at=a_year)
        # Rotated again, the first text ends at once; without overlap, so does the second.
        await keys.rotate(made.id, third, overlap=timedelta(0), expires_at=None)
        assert {first, second, third} & set(await keys.valid()) == {third}
        replaced = await keys.find_by_hash(second)
        assert replaced is not None
        assert replaced.has_expired(datetime.now(UTC))
        await keys.revoke(made.id)
        assert await keys.find_by_hash(third) is None
        assert await keys.rotate(made.id, first, overlap=a_week, expires_at=None) is None
