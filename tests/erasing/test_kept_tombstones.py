"""The store's own tombstones beside the database's: synchronised at a start, and never lost unnoticed."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from model_store.build import build_model
from model_store.datasets.load import load_dataset
from model_store.store import Store
from model_store.tombstones import RecordedTombstone
from projector.network.spec import ModelSpec
from service.access.keyring import Keyring
from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.records import Lease, Tombstone
from service.errors import KeyMissing, StateMismatch
from service.processes.key_folder import open_keyring
from service.requests.tombstones import TombstoneRepository
from service.settings import Settings
from service.unlearner.deleted_parts import find_deleted_parts, for_store, only_in_store, reconcile
from tests.support.service.db_harness import MODEL, Database

LEASE = Lease(MODEL, "one", 9, 60.0, 0.0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = load_dataset("synthetic:n=40,d=4,classes=2,seed=0", data_dirs=[])
    folder = tmp_path_factory.mktemp("trained") / "model"
    build_model(graph, ModelSpec(), name=MODEL, dataset="synthetic", split="full").write(folder)
    return folder


@pytest.fixture
def store(trained: Path) -> Iterator[Store]:
    yield Store.open(trained)
    for path in trained.glob("tombstones-*"):
        path.unlink()


@pytest.fixture
async def keyring(db: Database, tmp_path: Path) -> Keyring:
    return await open_keyring(db.engine, Settings(home=tmp_path))


async def deleted(db: Database, keyring: Keyring, *nodes: str) -> list[RecordedTombstone]:
    """Return the store's records of nodes that the database knows as deleted."""
    tombstones = of_nodes(keyring, *nodes)
    request = await db.accept(*nodes)
    tombstones = [Tombstone(one.kind, one.hash, one.key_number, request) for one in tombstones]
    async with transaction(db.engine) as connection:
        await TombstoneRepository(connection).insert(MODEL, tombstones, keyring.fingerprints())
    return for_store(tombstones, keyring)


def of_nodes(keyring: Keyring, *nodes: str) -> list[Tombstone]:
    hashes = [keyring.tombstone_hash(MODEL, RequestKind.NODE, node) for node in nodes]
    return [Tombstone(RequestKind.NODE, digest, number, uuid4()) for number, digest in hashes]


def damage(store: Store, record: int) -> Path:
    """Flip a bit of one record in the only file."""
    [path] = store.path.glob("tombstones-*")
    damaged = bytearray(path.read_bytes())
    damaged[64 * (record + 1)] ^= 1
    path.write_bytes(damaged)
    return path


async def in_step(db: Database, keyring: Keyring, store: Store) -> None:
    """Synchronise, as a start does."""

    class Started:
        engine, model, lease = db.engine, MODEL, LEASE

        def __init__(self) -> None:
            self.keyring = keyring

        async def run(self, work: Callable[[], Any]) -> Any:
            return work()

    started: Any = Started()
    await reconcile(started, store, started)


async def test_the_store_learns_what_the_database_knows(db: Database, keyring: Keyring, store: Store) -> None:
    known = await deleted(db, keyring, "1", "2")
    store.add_tombstones(known[:1], fencing=2)
    await in_step(db, keyring, store)
    assert set(store.tombstones().tombstones) == set(known)
    # In the file of this lease, counted; unchanged data is not written again.
    [path] = store.path.glob("tombstones-*")
    assert path.name == "tombstones-9"
    assert store.tombstones().is_tidy
    assert store.fencing() == 9
    inode = path.stat().st_ino
    await in_step(db, keyring, store)
    assert path.stat().st_ino == inode


async def test_a_store_that_knows_more_is_refused_and_its_own_are_what_a_recovery_takes_over(
    db: Database, keyring: Keyring, store: Store
) -> None:
    known = await deleted(db, keyring, "1")
    own = of_nodes(keyring, "3", "4")
    store.add_tombstones([*known, *for_store(own, keyring)], fencing=2)
    before = (store.path / "tombstones-2").read_bytes()
    with pytest.raises(StateMismatch, match="has 2 tombstones that the database does not have") as refused:
        await in_step(db, keyring, store)
    assert "lethe recover" in refused.value.remedy
    assert (store.path / "tombstones-2").read_bytes() == before
    found = await only_in_store(db.engine, store.tombstones(), keyring)
    assert found == [replace(one, request_id=None) for one in own]
    graph = store.load_base().graph
    deleted_parts = await find_deleted_parts(db.engine, keyring, MODEL, graph, found)
    assert [graph.node_ids[row] for row in deleted_parts.nodes] == ["1", "3", "4"]


async def test_what_joined_again_is_not_deleted_anew_for_an_older_database(
    db: Database, keyring: Keyring, store: Store
) -> None:
    # Neither its deletion nor the addition is in the older database.
    one, other = for_store(of_nodes(keyring, "3", "4"), keyring)
    store.add_tombstones([one, other], fencing=2)
    store.add_tombstones([replace(one, is_void=True)], fencing=2)
    assert [each.hash for each in await only_in_store(db.engine, store.tombstones(), keyring)] == [other.hash]
    store.add_tombstones([one], fencing=3)
    assert store.tombstones().hashes == {one.hash, other.hash}


async def test_the_store_keeps_no_tombstone_that_is_void_in_the_database(
    db: Database, keyring: Keyring, store: Store
) -> None:
    known = await deleted(db, keyring, "1", "2")
    store.add_tombstones(known, fencing=2)
    addition = await db.accept("1")
    async with transaction(db.engine) as connection:
        repository = TombstoneRepository(connection)
        await repository.lift(MODEL, {addition: [known[0].hash]})
        [void] = await repository.of_requests([addition])
    assert void.is_void
    store.add_tombstones(for_store([void], keyring), fencing=2)
    assert set(store.tombstones().tombstones) == {known[1]}
    await in_step(db, keyring, store)
    assert (set(store.tombstones().tombstones), store.tombstones().is_tidy) == ({known[1]}, True)


async def test_damage_is_mended_from_the_database(db: Database, keyring: Keyring, store: Store) -> None:
    known = await deleted(db, keyring, "1", "2")
    store.add_tombstones(known, fencing=2)
    damage(store, 0)
    await in_step(db, keyring, store)
    assert set(store.tombstones().tombstones) == set(known)
    assert store.tombstones().is_tidy


async def test_a_record_that_a_crash_cut_off_is_no_damage(db: Database, keyring: Keyring, store: Store) -> None:
    known = await deleted(db, keyring, "1", "2")
    store.add_tombstones(known[:1], fencing=2)
    store.add_tombstones(known[1:], fencing=2)
    path = store.path / "tombstones-2"
    path.write_bytes(path.read_bytes()[:-1])
    assert not store.tombstones().damaged
    await in_step(db, keyring, store)
    assert set(store.tombstones().tombstones) == set(known)


async def test_tombstones_of_a_key_that_is_missing_are_refused_by_its_name(
    db: Database, keyring: Keyring, store: Store, tmp_path: Path
) -> None:
    second = tmp_path / "keys" / "tombstone-2.key"
    second.write_text("ab" * 32)
    second.chmod(0o600)
    await deleted(db, Keyring.open(tmp_path / "keys"), "1")
    with pytest.raises(KeyMissing, match="tombstone-2"):
        await in_step(db, keyring, store)
    assert not list(store.path.glob("tombstones-*"))
