"""Readers in their own processes, beside publishing sessions; and the database's answer before any may predict."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from model_store.versions import VersionRef
from service.db import lease as leases
from service.db.clock import boottime
from service.db.lease import AnotherHome
from service.db.transactions import transaction
from service.domain.records import Pointer
from service.domain.snapshot import Snapshot
from service.errors import LeaseLost, Unavailable
from service.home_id import id_of, known_id
from service.predictions.reader import Reader
from service.predictions.served_model import Admission
from service.predictions.version_rows import PointerRepository
from service.predictions.writer import Publisher
from tests.support.processes import reader_process
from tests.support.service import publications
from tests.support.service.db_harness import MODEL, Database, until
from tests.support.service.publications import predicted

NO_EDGES = np.empty((0, 2), dtype=np.int64)
IDS = ("a", "b", "c", "d")


def snapshot(version: int, *dead: int) -> Snapshot:
    fill = version / 1000
    return publications.snapshot(version, np.tile([fill, 1.0 - fill], (len(IDS), 1)), ((0, 1),), dead)


@dataclass
class Session:
    """An unlearner's session that has published version 1."""

    home: Path
    fencing: int = 1

    def __post_init__(self) -> None:
        self.publisher = Publisher(self.home, self.home / "share")
        self.load(1)

    def load(self, version: int) -> None:
        shown = snapshot(version)
        model = publications.published_model(IDS, shown)
        publications.load(self.publisher, VersionRef(version, self.fencing), model, shown, self.fencing)

    def write(self, version: int, *dead: int) -> None:
        shown = snapshot(version, *dead)
        ref, before = VersionRef(version, self.fencing), VersionRef(version - 1, self.fencing)
        self.publisher.write(ref, shown, publications.version_facts(shown), of=before)

    def show(self, version: int) -> float:
        """Show a version. Returns the time after which no older version may answer a question."""
        assert self.publisher.show(VersionRef(version, self.fencing), self.fencing)
        return boottime()

    def clean_up(self, version: int, *gone: int) -> None:
        ref = VersionRef(version, self.fencing)
        self.publisher.erase(ref, np.array(gone, dtype=np.int64), NO_EDGES)
        self.publisher.remove_older(ref)


@dataclass
class ReaderProcess:
    """A reader in its own process; see reader_process.py."""

    process: asyncio.subprocess.Process

    async def answers(self, wanted: str) -> float:
        """Wait until it answers from `wanted`. Returns the time of the previous version's last answer."""
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
async def reading_elsewhere(home: Path) -> AsyncIterator[ReaderProcess]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, reader_process.__file__, str(home), "b",
        stdout=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        reader = ReaderProcess(process)
        await reader.answers("1")
        yield reader
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_reader_that_is_stopped_holds_nothing_up_and_never_answers_an_older_version(tmp_path: Path) -> None:
    """It is stopped anywhere in its work, and continues beside files overwritten meanwhile."""
    session = Session(tmp_path)
    async with reading_elsewhere(tmp_path) as reader:
        for version in range(2, 8):
            reader.process.send_signal(signal.SIGSTOP)
            session.write(version, 0)
            shown_at = session.show(version)
            session.clean_up(version, 0)
            reader.process.send_signal(signal.SIGCONT)
            assert await reader.answers(str(version)) < shown_at


async def test_no_answer_is_older_than_what_is_shown_while_versions_follow_each_other(tmp_path: Path) -> None:
    session = Session(tmp_path)
    async with reading_elsewhere(tmp_path) as reader:
        for version in range(2, 40):
            session.write(version, 0)
            shown_at = session.show(version)
            session.clean_up(version)
            assert await reader.answers(str(version)) < shown_at


async def test_a_session_that_goes_on_after_another_took_over_changes_no_answer(tmp_path: Path) -> None:
    stale = Session(tmp_path)
    async with reading_elsewhere(tmp_path) as reader:
        stale.write(2, 0)
        session = Session(tmp_path, fencing=2)
        for version in range(2, 20):
            session.write(version, 0)
            shown_at = session.show(version)
            # Its files are gone, so it writes them again.
            with pytest.raises(LeaseLost):
                stale.load(2)
            stale.clean_up(2, 0)
            session.clean_up(version)
            assert await reader.answers(str(version)) < shown_at


@pytest.fixture
async def committed(db: Database, tmp_path: Path) -> Session:
    """Version 1 is committed, and published in the database's own home."""
    async with transaction(db.engine) as connection:
        pointer = Pointer(MODEL, 1, 1, "1-1", "a" * 64, "b" * 64)
        await PointerRepository(connection).advance(0, pointer)
    await serve_from(db, id_of(tmp_path))
    return Session(tmp_path)


async def serve_from(db: Database, home: str) -> None:
    """Simulate a session in a home, by its id, that has found home and database to match."""
    lease = await leases.acquire(db.engine, MODEL, "one", 60, home=home)
    assert lease is not None
    await leases.claim_home(db.engine, lease, home)
    await leases.release(db.engine, lease)


async def test_a_reader_answers_once_the_database_says_that_its_home_is_the_one(
    db: Database, tmp_path: Path, committed: Session
) -> None:
    reader, stop = Reader(tmp_path), asyncio.Event()
    with pytest.raises(Unavailable):
        predicted(reader, "a")
    task = asyncio.create_task(Admission(db.engine, reader, tmp_path, MODEL).run(stop))
    await until(lambda: answers(reader))
    stop.set()
    await task
    assert await answers(reader)


async def answers(reader: Reader) -> bool:
    try:
        return predicted(reader, "b") is not None
    except Unavailable:
        return False


async def test_a_reader_in_a_restored_home_answers_nothing_before_the_unlearner_has_published(
    db: Database, tmp_path: Path, committed: Session
) -> None:
    """In place, within one boot, and with the same publication: the file system shows no difference."""
    async with transaction(db.engine) as connection:
        await PointerRepository(connection).advance(1, Pointer(MODEL, 2, 1, "2-1", "c" * 64, "d" * 64))
    reader = Reader(tmp_path)
    assert await Admission(db.engine, reader, tmp_path, MODEL).look()
    with pytest.raises(Unavailable, match="older than the committed one"):
        predicted(reader, "b")
    committed.write(2)
    committed.show(2)
    assert await answers(reader)


async def test_a_copied_home_answers_nothing_and_its_unlearner_gets_no_lease(
    db: Database, tmp_path: Path, committed: Session
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copytree(tmp_path / "run", copy / "run", symlinks=True)
    reader = Reader(copy)
    assert reader.look_up(["b"]) is None
    assert not await Admission(db.engine, reader, copy, MODEL).look()
    with pytest.raises(Unavailable, match="served from another LETHE_HOME"):
        predicted(reader, "b")
    # It also accepts no deletion, whose keys the right home could not read.
    with pytest.raises(Unavailable, match="served from another LETHE_HOME"):
        reader.look_up(["b"])
    with pytest.raises(AnotherHome):
        await leases.acquire(db.engine, MODEL, "two", 60, home=id_of(copy))


async def test_a_home_is_claimed_once_it_was_found_to_agree_with_the_database(db: Database, tmp_path: Path) -> None:
    wrong, right = id_of(tmp_path / "wrong"), id_of(tmp_path / "right")
    lease = await leases.acquire(db.engine, MODEL, "one", 60, home=wrong)
    assert lease is not None
    # It ends without an agreement.
    await leases.release(db.engine, lease)
    await serve_from(db, right)
    with pytest.raises(AnotherHome):
        await leases.acquire(db.engine, MODEL, "one", 60, home=wrong)
    lease = await leases.acquire(db.engine, MODEL, "one", 60, home=right)
    assert lease is not None
    await leases.claim_home(db.engine, lease, wrong)
    async with transaction(db.engine) as connection:
        assert await leases.home_of(connection, MODEL) == right


async def test_once_another_home_takes_over_readers_of_the_first_answer_nothing(
    db: Database, tmp_path: Path, committed: Session
) -> None:
    reader = Reader(tmp_path)
    admission = Admission(db.engine, reader, tmp_path, MODEL)
    assert await admission.look()
    assert await answers(reader)
    other = id_of(tmp_path / "other")
    assert await leases.acquire(db.engine, MODEL, "two", 60, home=other, take_over=True) is not None
    assert not await admission.look()
    assert not await answers(reader)
    with pytest.raises(AnotherHome):
        await leases.acquire(db.engine, MODEL, "one", 60, home=id_of(tmp_path))


async def test_a_home_that_was_taken_over_is_the_one_for_later_holders(db: Database, tmp_path: Path) -> None:
    first, second = id_of(tmp_path / "first"), id_of(tmp_path / "second")
    await serve_from(db, first)
    assert await leases.acquire(db.engine, MODEL, "two", 0.001, home=second, take_over=True) is not None
    assert await leases.acquire(db.engine, MODEL, "three", 60, home=second) is not None
    # Whether the lease is held or not.
    with pytest.raises(AnotherHome):
        await leases.acquire(db.engine, MODEL, "four", 60, home=first)
    assert await leases.acquire(db.engine, MODEL, "five", 60, home=second) is None


def test_a_home_keeps_its_id_and_a_copy_or_a_restored_one_has_none(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert known_id(home) is None
    drawn = id_of(home)
    assert (id_of(home), known_id(home)) == (drawn, drawn)
    shutil.copytree(home, tmp_path / "copy")
    assert known_id(tmp_path / "copy") is None
    assert id_of(tmp_path / "copy") != drawn
    home.rename(tmp_path / "moved")
    assert known_id(tmp_path / "moved") == drawn
    (tmp_path / "moved" / "run" / "id.json").write_bytes(b"")
    assert known_id(tmp_path / "moved") is None
