"""Lost key files, or those of another installation, are refused by name with a remedy, never silently recreated."""

import shutil
from pathlib import Path

import pytest
from sqlalchemy import text

from service.access.keyring import Keyring
from service.db import lease as leases
from service.db.lease import AnotherHome
from service.db.roles import API_ROLE
from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.records import KeySlot, Tombstone
from service.errors import KeyMissing
from service.home_id import id_of
from service.log.signed_checkpoints import CheckpointRepository
from service.processes.key_folder import REPLACEABLE, accept_lost, open_keyring, open_log_keys, open_request_keys
from service.requests.tombstones import TombstoneRepository
from service.settings import Settings
from tests.support.service.db_harness import MODEL, Database
from tests.support.service.logins import logged_in


async def used(db: Database, keys: Path) -> Keyring:
    """Return the keys in `keys`, each of which the database now depends on."""
    keyring = await open_keyring(db.engine, Settings(home=keys.parent))
    number, digest = keyring.tombstone_hash("tiny", RequestKind.NODE, "7")
    tombstone = Tombstone(RequestKind.NODE, digest, number, await db.accept("7"))
    log_keys = await open_log_keys(db.engine, keys)
    async with transaction(db.engine) as connection:
        await TombstoneRepository(connection).insert("tiny", [tombstone], keyring.fingerprints())
        await CheckpointRepository(connection).sign(log_keys)
    return keyring


RELIED_ON = ("api-pepper", "body", "tombstone-1", "unlearner/log-1")


async def open_again(db: Database, keys: Path, name: str) -> object:
    """Open the holder of the named key, as a start does."""
    if name == "unlearner/log-1":
        return await open_log_keys(db.engine, keys)
    return await open_keyring(db.engine, Settings(home=keys.parent))


async def test_a_lost_key_that_the_database_relies_on_is_named_and_not_made_anew(db: Database, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    await used(db, keys)
    for name in RELIED_ON:
        file = keys / f"{name}.key"
        kept = file.read_text()
        file.unlink()
        with pytest.raises(KeyMissing, match=rf"{Path(name).name}\.key") as refusal:
            await open_again(db, keys, name)
        assert "Restore" in refusal.value.remedy
        assert not file.exists()
        # Once put back, it works as before; an empty folder in its place is refused as well.
        file.write_text(kept)
        file.chmod(0o600)
        await open_again(db, keys, name)
        with pytest.raises(KeyMissing, match="key"):
            await open_again(db, tmp_path / "empty" / "keys", name)
        assert not (tmp_path / "empty" / "keys").exists()


async def test_a_key_of_another_installation_is_refused_by_name(db: Database, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    await used(db, keys)
    for name in RELIED_ON:
        kept = (keys / f"{name}.key").read_text()
        (keys / f"{name}.key").write_text("ab" * 32)
        with pytest.raises(KeyMissing, match=rf"{Path(name).name}\.key"):
            await open_again(db, keys, name)
        (keys / f"{name}.key").write_text(kept)


@pytest.mark.parametrize("keys_in_it", ["none", "its own", "copies"])
async def test_another_home_is_refused_as_such_before_any_of_its_keys_is_checked(
    db: Database, tmp_path: Path, keys_in_it: str
) -> None:
    await used(db, tmp_path / "keys")
    lease = await leases.acquire(db.engine, MODEL, "one", 60, home=id_of(tmp_path))
    assert lease is not None
    await leases.claim_home(db.engine, lease, id_of(tmp_path))
    another = Settings(home=tmp_path / "another")
    keys = another.home / "keys"
    if keys_in_it == "its own":
        Keyring.open(keys)
    elif keys_in_it == "copies":
        shutil.copytree(tmp_path / "keys", keys)
    with pytest.raises(AnotherHome):
        await open_keyring(db.engine, another)
    with pytest.raises(AnotherHome):
        await accept_lost(db.engine, another, REPLACEABLE)
    assert await db.value("SELECT count(*) FROM api_keys WHERE revoked_at IS NOT NULL") == 0
    assert keys.exists() == (keys_in_it != "none")
    # A home that takes the database over needs its keys.
    if keys_in_it == "copies":
        await open_keyring(db.engine, another, take_over=True)
    else:
        with pytest.raises(KeyMissing, match="key"):
            await open_keyring(db.engine, another, take_over=True)
    await open_keyring(db.engine, Settings(home=tmp_path))


async def test_request_keys_without_those_of_queued_requests_are_refused_until_they_are_back(
    db: Database, tmp_path: Path
) -> None:
    await db.accept("7")
    await db.accept("8")
    await db.intake.close()
    db.slots.close()
    keys = tmp_path / "keys"
    slots = keys / "requests" / "0.slots"
    away = slots.parent.rename(keys / "away")
    with pytest.raises(KeyMissing, match=r"2 requests are queued .* is missing") as refusal:
        await open_request_keys(db.engine, keys, db.keyring)
    assert "recover --accept-lost requests`" in refusal.value.remedy
    assert not slots.exists()
    away.rename(slots.parent)
    kept = slots.read_bytes()
    # An older copy lacks the second key.
    slots.write_bytes(kept[:128] + bytes(len(kept) - 128))
    slots.chmod(0o600)
    with pytest.raises(KeyMissing, match="One request is queued"):
        await open_request_keys(db.engine, keys, db.keyring)
    # Under another name it is not the requests' file; nothing in it is touched.
    slots.write_bytes(kept)
    other = slots.rename(slots.with_name("1.slots"))
    with pytest.raises(KeyMissing, match="2 requests are queued"):
        await open_request_keys(db.engine, keys, db.keyring)
    assert other.read_bytes() == kept
    other.rename(slots)
    await open_request_keys(db.engine, keys, db.keyring)


async def test_a_request_that_nobody_took_in_here_does_not_keep_lethe_from_starting(
    db: Database, tmp_path: Path
) -> None:
    kept = await db.accept("7")
    vouched = "(SELECT voucher FROM requests LIMIT 1)"
    # With the api's login: a key that never existed, in an existing or missing file, or none.
    async with logged_in(db, API_ROLE) as engine, transaction(engine) as connection:
        for place, voucher in (("0, 2", "NULL"), ("99, 1", "sha256('x')"), ("NULL, NULL", vouched)):
            columns = "(id, model, kind, count, ciphertext, api_key_id, key_file, key_place, voucher)"
            made_up = f"gen_random_uuid(), '{MODEL}', 'node', 1, sha256('x'), '{db.api_key_id}', {place}, {voucher}"
            await connection.execute(text(f"INSERT INTO requests {columns} SELECT {made_up}"))
    keys = await open_request_keys(db.engine, tmp_path / "keys", db.keyring)
    # An accepted request is unchanged.
    keys.destroy({kept: KeySlot(0, 1)})
    with pytest.raises(KeyMissing, match="One request is queued"):
        await open_request_keys(db.engine, tmp_path / "keys", db.keyring)
