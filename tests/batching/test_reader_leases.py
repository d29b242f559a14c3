"""Readers on a database: they move with the pointer, and the unlearner waits until none is left behind."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import structlog

from model_store.versions import VersionRef
from service.boottime import boottime
from service.db.transactions import transaction
from service.domain.records import Pointer
from service.domain.snapshot import Snapshot
from service.errors import Unavailable
from service.publication.checksums import PublicationDamaged, sealed, unsealed
from service.publication.following import Follower
from service.publication.layout import LIFE_S, MANIFEST
from service.publication.reader import Reader
from service.publication.readers import Readers
from service.publication.writer import Publisher
from service.versions.pointers import PointerRepository
from tests.support.processes import reader_process
from tests.support.service import publications
from tests.support.service.db_harness import MODEL, Database, open_database, until
from tests.support.service.publications import predicted

NO_EDGES = np.empty((0, 2), dtype=np.int64)
IDS = ("a", "b", "c", "d")


def snapshot(version: int, *dead: int) -> Snapshot:
    fill = version / 1000
    return publications.snapshot(version, np.tile([fill, 1.0 - fill], (len(IDS), 1)), ((0, 1),), dead)


def pointer(version: int) -> Pointer:
    return Pointer(MODEL, version, 1, f"{version}-1", "a" * 64, "b" * 64)


@dataclass
class World:
    """An unlearner that has published version 1, and may publish more."""

    db: Database
    home: Path
    publisher: Publisher
    readers: Readers

    def write(self, version: int, *dead: int) -> None:
        shown = snapshot(version, *dead)
        ref, before = VersionRef(version, 1), VersionRef(version - 1, 1)
        self.publisher.write(ref, shown, publications.version_facts(shown), of=before)

    async def commit(self, version: int) -> None:
        async with transaction(self.db.engine) as connection:
            await PointerRepository(connection).advance(version - 1, pointer(version))

    async def moved(self, version: int) -> None:
        await self.readers.moved(pointer(version), self.publisher.layout)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Reader]:
        """A reader that follows, once it answers."""
        reader, stop = Reader(), asyncio.Event()
        task = asyncio.create_task(Follower(self.db.engine, reader, self.home, MODEL).run(stop))
        try:
            await until(lambda: answers(reader))
            yield reader
        finally:
            stop.set()
            await task


async def answers(reader: Reader) -> bool:
    try:
        return predicted(reader, "b") is not None
    except Unavailable:
        return False


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        db = await stack.enter_async_context(open_database(database_url, tmp_path))
        async with transaction(db.engine) as connection:
            await PointerRepository(connection).advance(0, pointer(1))
        shown = snapshot(1)
        publisher = Publisher(tmp_path, tmp_path / "share")
        publications.load(publisher, VersionRef(1, 1), publications.published_model(IDS, shown), shown)
        readers = await stack.enter_async_context(Readers(db.engine))
        yield World(db, tmp_path, publisher, readers)


async def test_a_reader_answers_the_committed_version_and_moves_with_the_pointer(world: World) -> None:
    async with world.reading() as reader:
        assert reader.facts.served.version == 1
        world.write(2, 0)
        assert reader.knows("a")
        await world.commit(2)
        await world.moved(2)
        assert reader.facts.served.version == 2
        assert not reader.knows("a")
        assert await world.db.value("SELECT version FROM reader_leases") == 2
        world.publisher.remove_older(VersionRef(2, 1), 1)
        assert predicted(reader, "b") is not None


async def test_a_reader_moves_to_where_its_version_was_written_again_before_the_first_goes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.reading() as reader:
        # In place: it is mapped.
        with (world.publisher.layout.version("1-1") / "probabilities").open("r+b") as file:
            file.write(b"damaged")
        shown = snapshot(1)
        publications.load(world.publisher, VersionRef(1, 1), publications.published_model(IDS, shown), shown, fencing=2)
        again = world.publisher.layout.version("1-1")
        assert again.name == "1-1.2"
        extend, extended = reader.extend, list[Path]()

        def recorded(until: float) -> None:
            assert reader.view is not None
            extended.append(reader.view.path)
            extend(until)

        monkeypatch.setattr(reader, "extend", recorded)

        async def has_moved() -> bool:
            return reader.view is not None and reader.view.path == again

        await until(has_moved)
        # From then on its lease is of the new copy only.
        assert set(extended) == {again}
        world.publisher.remove_older(VersionRef(1, 1), 2)
        assert predicted(reader, "b") is not None


async def test_damage_that_an_answer_meets_is_told_and_logged_until_the_next_version(world: World) -> None:
    # Before any answer has read from it.
    with (world.publisher.layout.version("1-1") / "probabilities").open("r+b") as file:
        file.write(b"damaged")
    reader, stop = Reader(), asyncio.Event()
    follower = Follower(world.db.engine, reader, world.home, MODEL)
    task = asyncio.create_task(follower.run(stop))

    async def met() -> bool:
        with pytest.raises(Unavailable) as refusal:
            predicted(reader, "b")
        return isinstance(refusal.value, PublicationDamaged)

    async def logged() -> bool:
        return "probabilities is damaged" in (follower.outage.reason or "")

    await until(met)
    await until(logged)
    assert reader.facts.served.version == 1
    world.write(2)
    await world.commit(2)
    await world.moved(2)
    assert predicted(reader, "b") is not None
    stop.set()
    await task


async def test_the_unlearner_waits_for_every_reader_and_for_none_that_has_ended(world: World) -> None:
    async with world.reading(), world.reading() as other:
        async with world.reading():
            assert await world.db.value("SELECT count(*) FROM reader_leases") == 3
        assert await world.db.value("SELECT count(*) FROM reader_leases") == 2
        for version in (2, 3, 4):
            world.write(version)
            await world.commit(version)
            await world.moved(version)
            assert other.facts.served.version == version
    assert await world.db.value("SELECT count(*) FROM reader_leases") == 0
    assert not world.publisher.layout.has_readers()


async def test_a_reader_whose_file_is_missing_is_waited_for_until_its_lease_has_lapsed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.db.rows("INSERT INTO reader_leases VALUES (gen_random_uuid(), :model, 1, now())", model=MODEL)
    world.write(2)
    await world.commit(2)
    clock = [0.0]
    monkeypatch.setattr("service.publication.readers.boottime", lambda: clock[0])
    waiting = asyncio.create_task(world.moved(2))
    # Asked for once, found to be waited for, and asked for again: it is not let go before its time.
    for _ in range(3):
        await world.db.value("SELECT count(*) FROM reader_leases")
    assert not waiting.done()
    clock[0] = LIFE_S
    await waiting
    assert await world.db.value("SELECT count(*) FROM reader_leases") == 0


async def test_a_reader_refuses_another_format_by_name_and_goes_on_once_it_can_read(world: World) -> None:
    manifest = world.publisher.layout.version("1-1") / MANIFEST
    data = manifest.read_bytes()
    manifest.write_bytes(sealed(unsealed(data, manifest).replace(b'"format":1', b'"format":2')))
    reader, stop = Reader(), asyncio.Event()
    task = asyncio.create_task(Follower(world.db.engine, reader, world.home, MODEL).run(stop))

    async def refused() -> bool:
        with pytest.raises(Unavailable) as refusal:
            predicted(reader, "a")
        return "is not of format 1, which this process reads" in refusal.value.detail

    await until(refused)
    assert await world.db.value("SELECT count(*) FROM reader_leases") == 0
    manifest.write_bytes(data)
    await until(lambda: answers(reader))
    stop.set()
    await task


async def test_a_reader_that_begins_before_anything_is_published_answers_once_it_is_and_reports_no_outage(
    world: World, tmp_path: Path
) -> None:
    home, reader, stop = tmp_path / "later", Reader(), asyncio.Event()
    follower = Follower(world.db.engine, reader, home, MODEL)
    task = asyncio.create_task(follower.run(stop))

    async def refused() -> bool:
        with pytest.raises(Unavailable) as refusal:
            predicted(reader, "b")
        return "the unlearner has not published the model (yet)" in refusal.value.detail

    with structlog.testing.capture_logs() as logs:
        await until(refused)
        shown = snapshot(1)
        published = publications.published_model(IDS, shown)
        publications.load(Publisher(home, tmp_path / "share"), VersionRef(1, 1), published, shown)
        await until(lambda: answers(reader))
    assert not [entry for entry in logs if entry["event"] == "outage"]
    stop.set()
    await task


async def test_a_reader_waits_for_a_pointer_that_is_being_moved_and_then_serves_what_it_names(world: World) -> None:
    world.write(2, 0)
    async with AsyncExitStack() as stack:
        # Uncommitted: no reader gets a lease on version 1 any more, and none on version 2 yet.
        connection = await stack.enter_async_context(transaction(world.db.engine))
        await PointerRepository(connection).advance(1, pointer(2))
        reader, stop = Reader(), asyncio.Event()
        task = asyncio.create_task(Follower(world.db.engine, reader, world.home, MODEL).run(stop))
        await until(lambda: waits(world.db))
        assert not await answers(reader)
    await until(lambda: answers(reader))
    assert reader.facts.served.version == 2
    stop.set()
    await task


async def waits(db: Database) -> bool:
    return bool(await db.value("SELECT count(*) FROM pg_locks WHERE NOT granted"))


async def test_a_reader_goes_on_after_its_connection_was_lost(world: World) -> None:
    async with world.reading() as reader:
        # Its own connection, and that of the unlearner, which listens too.
        await world.readers.moved(pointer(1), world.publisher.layout)
        lost = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query ~* :of"
        await world.db.rows(lost, of="LISTEN|reader_lease_renew")
        world.write(2)
        await world.commit(2)

        async def moved() -> bool:
            try:
                await world.moved(2)
            except Unavailable:
                return False
            return True

        await until(moved)
        await until(lambda: answers(reader))
        assert reader.facts.served.version == 2


async def test_a_reader_that_ends_answers_nothing_more(world: World) -> None:
    async with world.reading() as reader:
        predicted(reader, "a")
    with pytest.raises(Unavailable, match="is ending"):
        predicted(reader, "a")


@dataclass
class ReaderProcess:
    """A reader in a process of its own; see reader_process.py."""

    process: asyncio.subprocess.Process

    async def answers(self, wanted: str) -> float:
        """Wait until it answers from `wanted`; returns when the version before answered for the last time."""
        assert self.process.stdout is not None
        last_of_older, before = 0.0, ""
        while line := (await self.process.stdout.readline()).decode():
            answer, asked = line.rsplit(" ", 1)
            assert answer == "none" or answer.isdecimal(), line
            if before != "none":
                last_of_older = float(asked)
            before = answer
            if answer == wanted:
                return last_of_older
        raise AssertionError("it has ended")


@asynccontextmanager
async def reading_elsewhere(world: World) -> AsyncIterator[ReaderProcess]:
    program = reader_process.__file__
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, program, world.db.url, str(world.home), MODEL, "b",
        stdout=asyncio.subprocess.PIPE, env=environment,
    )  # fmt: skip
    try:
        reader = ReaderProcess(process)
        await reader.answers("1")
        yield reader
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_reader_process_that_is_stopped_delays_a_version_by_its_lease_and_never_answers_an_older_one(
    world: World,
) -> None:
    """Stopped wherever it is in its work, and continued beside what has meanwhile been overwritten."""
    async with reading_elsewhere(world) as reader:
        for version in range(2, 4):
            reader.process.send_signal(signal.SIGSTOP)
            world.write(version, 0)
            await world.commit(version)
            # By this process's own clock: it returns though the reader has neither moved nor gone.
            await world.moved(version)
            applied_at = boottime()
            assert await world.db.value("SELECT count(*) FROM reader_leases") == 0
            world.publisher.erase(VersionRef(version, 1), np.array([0]), NO_EDGES, 1)
            world.publisher.remove_older(VersionRef(version, 1), 1)
            reader.process.send_signal(signal.SIGCONT)
            assert await reader.answers(str(version)) < applied_at


async def test_a_reader_process_answers_nothing_older_than_what_is_applied_while_versions_follow_each_other(
    world: World,
) -> None:
    async with reading_elsewhere(world) as reader:
        for version in range(2, 30):
            world.write(version, 0)
            await world.commit(version)
            await world.moved(version)
            applied_at = boottime()
            world.publisher.remove_older(VersionRef(version, 1), 1)
            assert await reader.answers(str(version)) < applied_at


async def test_a_reader_process_that_is_killed_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reading_elsewhere(world) as reader:
        reader.process.kill()
        await reader.process.wait()
        world.write(2, 0)
        await world.commit(2)
        # By this clock no lease ever lapses.
        monkeypatch.setattr("service.publication.readers.boottime", lambda: 0.0)
        await world.moved(2)
        assert await world.db.value("SELECT count(*) FROM reader_leases") == 0
        assert list(world.publisher.layout.readers.iterdir()) == []
