"""The transparency log in a real Postgres: a leaf for every event, in one order, provable, and immutable."""

import asyncio
import json
from pathlib import Path
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError

from service.db import migrate, roles, schema
from service.db.engine import create_engine
from service.db.roles import API_ROLE, UNLEARNER_ROLE
from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.records import Targets
from service.domain.states import EventType
from service.errors import ConfigurationError, KeyMissing
from service.log.canonical import parse_canonical
from service.log.checkpoints import Checkpoint, verify
from service.log.commitments import commitment, holds
from service.log.events import EventRepository, LogDamaged, LogRepository
from service.log.leaves import AlreadyDeleted
from service.log.merkle import EMPTY_ROOT, is_consistent, leaf_hash, root, root_by_inclusion
from service.log.signed_checkpoints import CheckpointRepository, LogForked, LogSigner
from service.log.signing_keys import LogKeys
from service.observability.metrics import UnlearningMetrics
from service.requests.callers import NewRequest
from service.requests.moves import RequestMoves
from tests.support.service.db_harness import MODEL, Database, Said, until

LOG_TABLES = ("events", "leaves", "log_nodes", "checkpoints", "log_keys")


@pytest.fixture
def keys(tmp_path: Path) -> LogKeys:
    return LogKeys.open(tmp_path / "keys")


async def leaves_of(db: Database) -> list[bytes]:
    return [row["data"].encode() for row in await db.rows("SELECT data FROM leaves ORDER BY index")]


async def append(db: Database, request_id: UUID, times: int = 1) -> None:
    for _ in range(times):
        async with transaction(db.engine) as conn:
            await EventRepository(conn).append_many(EventType.FAILED, {request_id: Said(n=1)})


async def sign(db: Database, keys: LogKeys) -> Checkpoint:
    async with transaction(db.engine) as conn:
        return await CheckpointRepository(conn).sign(keys)


async def size(db: Database) -> int:
    async with transaction(db.engine) as conn:
        return await LogRepository(conn).size()


async def guard(db: Database, how: str) -> None:
    """Enable or disable the triggers, as the tables' owner can."""
    for table in LOG_TABLES:
        await db.rows(f"ALTER TABLE {table} {how} TRIGGER USER")


async def test_every_event_has_a_leaf_that_records_it_and_names_nobody(db: Database) -> None:
    request_id = await db.accept("alice", "bob")
    await db.applied([request_id])
    async with transaction(db.engine) as conn:
        await RequestMoves(conn).mark_completed({request_id: Said(span_residual=3e-15, steps={"erase": 1.0})})
        events = await EventRepository(conn).of_request(request_id)
    applied, completed = [json.loads(data) for data in await leaves_of(db)]

    for index, (event, leaf) in enumerate(zip(events, (applied, completed), strict=True)):
        assert leaf["format"] == "lethe-leaf/1"
        assert (leaf["index"], leaf["event"], leaf["type"]) == (index, event.id, event.type.value)
        assert leaf["request_id"] == str(request_id)
        assert leaf["details"] == event.payload
        assert leaf["time"] == event.created_at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    assert applied["request"]["guarantee"] == "span"
    assert applied["request"]["count"] == 2
    assert applied["request"]["explanation"] == "One direction was removed."

    salts = {node: node.encode().hex() for node in ("alice", "bob")}
    assert applied["subjects"] == [commitment(salts[node], node).hex() for node in ("alice", "bob")]
    assert applied["reference"] == commitment("5a17", "DSR-17").hex()
    assert completed["subjects"] is completed["reference"] is None
    whole = b"".join(await leaves_of(db))
    for name in (b"alice", b"bob", b"DSR-17", *(salt.encode() for salt in salts.values())):
        assert name not in whole


async def test_an_edge_is_committed_to_as_a_pair(db: Database) -> None:
    targets = Targets(edges=(("b", "a"), ("a", "c")), node_salts={"a": "0a", "b": "0b", "c": "0c"}, reference_salt=None)
    accepted = await db.intake.accept(NewRequest(MODEL, RequestKind.EDGE, targets, None, db.api_key_id))
    async with transaction(db.engine) as conn:
        await RequestMoves(conn).mark_failed(accepted.request.id, "x")
    [leaf] = [json.loads(data) for data in await leaves_of(db)]
    a, b, c = commitment("0a", "a"), commitment("0b", "b"), commitment("0c", "c")
    assert leaf["subjects"] == [[a.hex(), b.hex()], [a.hex(), c.hex()]]
    assert leaf["reference"] is None
    assert holds(leaf["subjects"], b, a)
    assert not holds(leaf["subjects"], b, c)


async def test_a_request_that_had_nothing_left_to_do_is_committed_to_where_it_completes(db: Database) -> None:
    earlier, later = await db.accept("1"), await db.accept("1")
    async with transaction(db.engine) as conn:
        await RequestMoves(conn).mark_completed_without_work(
            later, AlreadyDeleted(RequestKind.NODE, (earlier,)), "Nothing was left to do."
        )
    [leaf] = [json.loads(data) for data in await leaves_of(db)]
    assert leaf["subjects"] == [commitment(b"1".hex(), "1").hex()]
    assert leaf["request"]["already_deleted_by"] == str(earlier)


async def test_what_a_cancelled_request_named_is_not_committed_to_any_more(db: Database) -> None:
    await db.intake.cancel(await db.accept("1"), db.api_key_id)
    assert await db.value("SELECT num_nonnulls(subject_commitments, reference_commitment) FROM requests") == 0


async def test_an_event_that_is_rolled_back_leaves_no_leaf(db: Database) -> None:
    request_id = await db.accept()

    async def fail() -> None:
        async with transaction(db.engine) as conn:
            await EventRepository(conn).append_many(EventType.FAILED, {request_id: Said()})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert await size(db) == 0
    await append(db, request_id)
    assert [json.loads(data)["index"] for data in await leaves_of(db)] == [0]


async def test_concurrent_appenders_make_one_sequence_without_gaps(db: Database, keys: LogKeys) -> None:
    requests = [await db.accept(str(number)) for number in range(8)]
    appending = [append(db, request_id, 6) for request_id in requests]

    async def signing() -> None:
        for _ in range(10):
            await sign(db, keys)

    await asyncio.gather(*appending, signing())
    await sign(db, keys)
    leaves = await leaves_of(db)
    assert [json.loads(data)["index"] for data in leaves] == list(range(48))
    # Numbered in the order of their leaves.
    events = [json.loads(data)["event"] for data in leaves]
    assert events == sorted(events)
    trusted = [signer.public for signer in keys.signers().values()]
    for row in await db.rows("SELECT note FROM checkpoints ORDER BY id"):
        checkpoint = verify(row["note"], trusted)
        assert checkpoint.root == root(map(leaf_hash, leaves[: checkpoint.size]))
    assert checkpoint.size == 48


async def test_every_proof_verifies_against_its_checkpoint(db: Database, keys: LogKeys) -> None:
    request_id = await db.accept()
    checkpoints = [await sign(db, keys)]
    assert (checkpoints[0].size, checkpoints[0].root) == (0, EMPTY_ROOT)
    for _ in range(13):
        await append(db, request_id)
        checkpoints.append(await sign(db, keys))
    leaves = [leaf_hash(data) for data in await leaves_of(db)]
    async with transaction(db.engine) as conn:
        log = LogRepository(conn)
        for checkpoint in checkpoints[1:]:
            assert await log.root(checkpoint.size) == checkpoint.root
            for index in range(checkpoint.size):
                proof = await log.inclusion(index, checkpoint.size)
                assert root_by_inclusion(index, checkpoint.size, leaves[index], proof) == checkpoint.root
        last = checkpoints[-1]
        for earlier in checkpoints[1:]:
            proof = await log.consistency(earlier.size, last.size)
            assert is_consistent(earlier.size, last.size, earlier.root, last.root, proof)


async def test_the_log_is_signed_once_for_each_size_and_anew_when_a_key_is_added(db: Database, tmp_path: Path) -> None:
    keys = LogKeys.open(tmp_path / "keys")
    await append(db, await db.accept())
    first = await sign(db, keys)
    assert await sign(db, keys) == first
    assert await db.value("SELECT count(*) FROM checkpoints") == 1
    both = LogKeys.add(tmp_path / "keys")
    second = await sign(db, both)
    assert await sign(db, both) == second
    notes = [row["note"] for row in await db.rows("SELECT note FROM checkpoints ORDER BY id")]
    assert len(notes) == 2
    old, new = both.signers().values()
    assert verify(notes[1], [old.public]) == verify(notes[1], [new.public]) == second
    # The log itself announces the newer key, under the older one's signature; nothing could announce the first.
    assert second.size == first.size + 1
    async with transaction(db.engine) as conn:
        [leaf] = [parse_canonical(leaf.data) for leaf in await LogRepository(conn).unrequested()]
    assert (leaf["type"], leaf["details"]) == ("log_key_added", {"number": 2, "public_key": str(new.public)})
    # Retired: the newer key signs alone, under the log's original name.
    (tmp_path / "keys" / "unlearner" / "log-1.key").unlink()
    await append(db, await db.accept())
    retired = LogKeys.open(tmp_path / "keys")
    assert (await sign(db, retired)).origin == first.origin


async def test_a_key_that_did_not_sign_this_log_is_refused(db: Database, keys: LogKeys, tmp_path: Path) -> None:
    await sign(db, keys)
    await append(db, await db.accept())
    with pytest.raises(KeyMissing, match="calls the log"):
        await sign(db, LogKeys.open(tmp_path / "others"))
    assert await db.value("SELECT count(*) FROM checkpoints") == 1


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM leaves WHERE index = 4",
        "UPDATE leaves SET hash = decode(repeat('ab', 32), 'hex') WHERE index = 4",
        "UPDATE log_nodes SET hash = decode(repeat('ab', 32), 'hex') WHERE level = 2",
        "DELETE FROM log_nodes WHERE level = 2",
    ],
)
async def test_a_log_that_contradicts_what_was_signed_is_not_signed_again(
    db: Database, keys: LogKeys, change: str
) -> None:
    request_id = await db.accept()
    await append(db, request_id, 5)
    await sign(db, keys)
    await guard(db, "DISABLE")
    await db.rows(change)
    await guard(db, "ENABLE")

    async def go_on() -> None:
        await append(db, request_id)
        await sign(db, keys)

    with pytest.raises((LogForked, LogDamaged)):
        await go_on()
    assert await db.value("SELECT count(*) FROM checkpoints") == 1


async def test_the_signer_signs_what_others_append_until_it_is_stopped(db: Database, keys: LogKeys) -> None:
    metrics, stop = CollectorRegistry(), asyncio.Event()
    signer = LogSigner(db.engine, keys, UnlearningMetrics(metrics))
    running = asyncio.create_task(signer.run(stop))

    async def signed(wanted: int) -> bool:
        return bool(await db.value("SELECT coalesce(max(size), -1) = :wanted FROM checkpoints", wanted=wanted))

    await until(lambda: signed(0))
    await append(db, await db.accept(), 3)
    await until(lambda: signed(3))
    stop.set()
    await running
    assert metrics.get_sample_value("lethe_log_signed_size") == 3
    # What other activities append after it has ended is signed as well.
    await append(db, await db.accept(), 2)
    await signer.sign_last()
    assert await signed(5)


# The guards.


async def test_no_row_of_the_log_is_changed_or_removed_even_by_its_owner(db: Database, keys: LogKeys) -> None:
    await append(db, await db.accept(), 2)
    await sign(db, keys)
    for table in LOG_TABLES:
        before = await db.rows(f"SELECT * FROM {table}")
        assert before
        column = list(before[0])[1]
        for statement in (
            f"UPDATE {table} SET {column} = {column}",
            f"DELETE FROM {table}",
            f"TRUNCATE {table} CASCADE",
            f"DELETE FROM {table} WHERE false",
            f"UPDATE {table} SET {column} = {column} WHERE false",
        ):
            with pytest.raises(DBAPIError, match="never changed"):
                await db.rows(statement)
        assert await db.rows(f"SELECT * FROM {table}") == before
    with pytest.raises(DBAPIError, match="never changed"):
        # It would take the events along.
        await db.rows("TRUNCATE requests CASCADE")


async def test_the_applications_role_has_no_right_to_change_events_or_log(db: Database, keys: LogKeys) -> None:
    """With the triggers off, the grants refuse it."""
    await append(db, await db.accept(), 2)
    await sign(db, keys)
    columns = {table: list((await db.rows(f"SELECT * FROM {table}"))[0])[1] for table in LOG_TABLES}
    assert await roles.available(db.engine, UNLEARNER_ROLE) == UNLEARNER_ROLE
    await guard(db, "DISABLE")
    engine = create_engine(db.url, pool_size=1, role=UNLEARNER_ROLE)
    try:
        for table, column in columns.items():
            for statement in (
                f"UPDATE {table} SET {column} = DEFAULT",
                f"DELETE FROM {table}",
                f"TRUNCATE {table} CASCADE",
                f"ALTER TABLE {table} DISABLE TRIGGER ALL",
                f"DROP TABLE {table} CASCADE",
                "UPDATE alembic_version SET version_num = '0'",
                "CREATE TABLE own (n int)",
            ):
                with pytest.raises(DBAPIError, match=r"permission denied|must be owner"):
                    async with engine.begin() as conn:
                        await conn.execute(text(statement))
    finally:
        await engine.dispose()


async def test_the_service_can_do_all_it_does_with_a_login_of_that_role(
    db: Database, keys: LogKeys, tmp_path: Path
) -> None:
    """As set up by an operator who gives the service its own login."""
    parsed = make_url(db.url)
    login = f"{parsed.database}_app"
    await db.rows(f"CREATE ROLE {login} LOGIN PASSWORD 'secret' IN ROLE {API_ROLE}, {UNLEARNER_ROLE}")
    url = parsed.set(username=login, password="secret").render_as_string(hide_password=False)
    try:
        await migrate.upgrade(url)
        assert await schema.current(url) == schema.head()
        engine = create_engine(url)
        try:
            assert await roles.available(engine, UNLEARNER_ROLE) == UNLEARNER_ROLE
            owned, db.engine = db.engine, engine
            db.intake._engine = engine
            request_id = await db.accept("1")
            await db.applied([request_id])
            async with transaction(engine) as conn:
                await RequestMoves(conn).mark_completed({request_id: Said()})
            await db.intake.cancel(await db.accept("2"), db.api_key_id)
            assert (await sign(db, keys)).size == 2
            db.engine = owned
        finally:
            await engine.dispose()
    finally:
        await db.rows(f"DROP ROLE {login}")


async def test_that_login_is_refused_until_the_owner_has_migrated(empty_database_url: str) -> None:
    database_url = empty_database_url
    parsed = make_url(database_url)
    login = f"{parsed.database}_app"
    owner = create_engine(database_url, pool_size=1)
    try:
        async with owner.begin() as conn:
            await conn.execute(text(f"CREATE ROLE {login} LOGIN PASSWORD 'secret' IN ROLE {UNLEARNER_ROLE}"))
        url = parsed.set(username=login, password="secret").render_as_string(hide_password=False)
        with pytest.raises(ConfigurationError, match="may not change it"):
            await migrate.upgrade(url)
        await migrate.upgrade(database_url)
        await migrate.upgrade(url)
    finally:
        async with owner.begin() as conn:
            await conn.execute(text(f"DROP ROLE {login}"))
        await owner.dispose()
