"""The store's own tombstones beside the database's: brought in step at a start, and none of them forgotten unseen."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from db_harness import MODEL, Database, open_database

from model_store.build import build_model
from model_store.datasets.load import load_dataset
from model_store.errors import StoreDamaged
from model_store.store import Store
from model_store.tombstones import KeptTombstone
from projector.network.spec import ModelSpec
from service.db.recoveries import RecoveryRepository
from service.db.tombstones import TombstoneRepository
from service.db.transactions import transaction
from service.db.vault_keys import open_keyring
from service.domain.records import Lease, Recovery, Tombstone
from service.domain.states import RequestKind
from service.errors import KeyMissing
from service.vault.keyring import Keyring
from service.worker.kept_tombstones import as_kept, keep_in_step
from service.worker.tombstoned import find_tombstoned

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
async def db(database_url: str, tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(database_url, tmp_path) as database:
        yield database


@pytest.fixture
async def keyring(db: Database, tmp_path: Path) -> Keyring:
    return await open_keyring(db.engine, tmp_path / "keys")


async def deleted(db: Database, keyring: Keyring, *nodes: str) -> list[KeptTombstone]:
    """What the store keeps of nodes that the database knows to be deleted."""
    tombstones = of_nodes(keyring, *nodes)
    request = await db.accept(*nodes)
    tombstones = [Tombstone(one.kind, one.hash, one.key_number, request) for one in tombstones]
    async with transaction(db.engine) as connection:
        await TombstoneRepository(connection).insert(tombstones, keyring.fingerprints())
    return as_kept(tombstones, keyring)


def of_nodes(keyring: Keyring, *nodes: str) -> list[Tombstone]:
    hashes = [keyring.tombstone_hash(MODEL, RequestKind.NODE, node) for node in nodes]
    return [Tombstone(RequestKind.NODE, digest, number, uuid4()) for number, digest in hashes]


def damage(store: Store, record: int) -> Path:
    """A bit of one record flips, in the only file."""
    [path] = store.path.glob("tombstones-*")
    damaged = bytearray(path.read_bytes())
    damaged[64 * (record + 1)] ^= 1
    path.write_bytes(damaged)
    return path


async def recovered(db: Database) -> None:
    """From now on the database is one that was older than the store once."""
    recovery = Recovery(uuid4(), MODEL, "0-0", "2-3", 3, "a" * 64, "b" * 64, 0, 0, 0, 0, 1)
    async with transaction(db.engine) as connection:
        await RecoveryRepository(connection).commit(recovery, 4)


async def test_the_store_learns_what_the_database_knows_and_keeps_what_it_alone_knows(
    db: Database, keyring: Keyring, store: Store
) -> None:
    known = await deleted(db, keyring, "1", "2")
    own = as_kept(of_nodes(keyring, "3"), keyring)
    store.add_tombstones(own, fencing=2)
    assert await keep_in_step(db.engine, store, keyring, LEASE) == {own[0].hash}
    assert set(store.tombstones().tombstones) == {*known, *own}
    # In the file of this lease, counted; and nothing is written again where nothing has changed.
    [path] = store.path.glob("tombstones-*")
    assert path.name == "tombstones-9"
    assert store.tombstones().is_tidy
    assert store.fencing() == 9
    inode = path.stat().st_ino
    assert await keep_in_step(db.engine, store, keyring, LEASE) == {own[0].hash}
    assert path.stat().st_ino == inode


async def test_damage_is_mended_from_a_database_that_has_every_tombstone(
    db: Database, keyring: Keyring, store: Store
) -> None:
    known = await deleted(db, keyring, "1", "2")
    store.add_tombstones(known, fencing=2)
    damage(store, 0)
    assert await keep_in_step(db.engine, store, keyring, LEASE) == frozenset()
    assert set(store.tombstones().tombstones) == set(known)
    assert store.tombstones().is_tidy


async def test_damage_is_refused_by_name_where_the_database_was_older_once(
    db: Database, keyring: Keyring, store: Store
) -> None:
    known = await deleted(db, keyring, "1")
    own = as_kept(of_nodes(keyring, "3"), keyring)
    store.add_tombstones([*known, *own], fencing=2)
    await recovered(db)
    whole = (store.path / "tombstones-2").read_bytes()
    path = damage(store, 1)
    damaged = path.read_bytes()
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=f"{path} cannot be read whole") as refused:
            await keep_in_step(db.engine, store, keyring, LEASE)
        assert "--accept-lost tombstones" in refused.value.remedy
    assert path.read_bytes() == damaged
    # Nor is a newly trained model taken that may contain what was deleted.
    graph = store.load_base().graph
    with pytest.raises(StoreDamaged, match="cannot be read whole"):
        await find_tombstoned(db.engine, keyring, MODEL, graph, store.tombstones())
    path.write_bytes(whole)
    found = await find_tombstoned(db.engine, keyring, MODEL, graph, store.tombstones())
    assert [graph.node_ids[row] for row in found.nodes] == ["1", "3"]


async def test_damage_is_refused_by_name_beside_tombstones_that_the_database_does_not_know(
    db: Database, keyring: Keyring, store: Store
) -> None:
    own = as_kept(of_nodes(keyring, "3", "4"), keyring)
    store.add_tombstones(own, fencing=2)
    damage(store, 1)
    with pytest.raises(StoreDamaged, match="cannot be read whole"):
        await keep_in_step(db.engine, store, keyring, LEASE)


async def test_a_record_that_a_crash_cut_off_is_no_damage_beside_an_older_database_either(
    db: Database, keyring: Keyring, store: Store
) -> None:
    known = await deleted(db, keyring, "1")
    own = as_kept(of_nodes(keyring, "3"), keyring)
    store.add_tombstones(own, fencing=2)
    store.add_tombstones(known, fencing=2)
    await recovered(db)
    path = store.path / "tombstones-2"
    path.write_bytes(path.read_bytes()[:-1])
    assert await keep_in_step(db.engine, store, keyring, LEASE) == {own[0].hash}
    assert set(store.tombstones().tombstones) == {*known, *own}


async def test_tombstones_of_a_key_that_is_missing_are_refused_by_its_name(
    db: Database, keyring: Keyring, store: Store, tmp_path: Path
) -> None:
    second = tmp_path / "keys" / "tombstone-2.key"
    second.write_text("ab" * 32)
    second.chmod(0o600)
    await deleted(db, Keyring.open(tmp_path / "keys"), "1")
    with pytest.raises(KeyMissing, match="tombstone-2"):
        await keep_in_step(db.engine, store, keyring, LEASE)
    assert not list(store.path.glob("tombstones-*"))
