"""The store's own record of tombstones, kept in step with the database's: see `model_store.tombstones`."""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial

import structlog

from model_store.errors import StoreDamaged
from model_store.store import Store
from model_store.tombstones import KEY_BYTES, Kept, KeptTombstone
from service.db.engine import Engine
from service.db.recoveries import RecoveryRepository
from service.db.tombstones import TombstoneRepository
from service.db.transactions import transaction
from service.domain.records import Lease, Tombstone
from service.domain.states import RequestKind
from service.errors import KeyMissing
from service.vault.keyring import Keyring

#: By this name an operator accepts that some of the record are lost.
TOMBSTONES = "tombstones"
_CODES = {RequestKind.NODE: 0, RequestKind.FEATURES: 1, RequestKind.EDGE: 2}
#: Hashes looked up at once.
_PAGE = 20_000


def as_kept(tombstones: Iterable[Tombstone], keyring: Keyring) -> list[KeptTombstone]:
    """The same as the store keeps it, without the request; `keyring` has the keys that made them."""
    keys = {number: fingerprint[:KEY_BYTES] for number, fingerprint in keyring.fingerprints().items()}
    return [KeptTombstone(one.hash, keys[one.key_number], _CODES[one.kind]) for one in tombstones]


def require_keys(kept: Kept, keyring: Keyring) -> None:
    """Raises KeyMissing when tombstones were made with a key that is not here: what they name could not be told."""
    own = {fingerprint[:KEY_BYTES] for fingerprint in keyring.fingerprints().values()}
    foreign = sum(one.key not in own for one in kept.tombstones)
    if foreign:
        raise KeyMissing(
            f"{foreign} of the tombstones that the model keeps were made with a key that is not in the key folder.",
            "Restore the key folder that belongs to the model; until then deleted nodes cannot be told. If it is lost "
            "for good, move the files `tombstones-*` out of the model's folder: nothing then keeps what they name out "
            "of a newly trained model.",
        )


def hashes_of(kept: Kept, kind: RequestKind) -> list[bytes]:
    """The hashes of what requests of a kind have deleted."""
    return [one.hash for one in kept.tombstones if one.code == _CODES[kind]]


async def only_in_store(engine: Engine, hashes: Sequence[bytes]) -> frozenset[bytes]:
    """Those of `hashes` that the database does not know. Raises Unavailable."""
    unknown: set[bytes] = set()
    async with transaction(engine) as connection:
        repository = TombstoneRepository(connection)
        for start in range(0, len(hashes), _PAGE):
            page = hashes[start : start + _PAGE]
            unknown.update(set(page) - (await repository.find(page)).keys())
    return frozenset(unknown)


async def require_readable(engine: Engine, kept: Kept, model: str) -> None:
    """Raises StoreDamaged when tombstones that the model keeps cannot be read and may be in no database.

    One that was never behind the model has all of them: they were recorded there first.
    """
    if not kept.damaged:
        return
    async with transaction(engine) as connection:
        was_behind = bool(await RecoveryRepository(connection).list(model))
    if was_behind or await only_in_store(engine, list(kept.hashes)):
        raise unreadable(kept)
    structlog.get_logger(__name__).warning("tombstones.damaged", model=model, readable=len(kept.tombstones))


def unreadable(kept: Kept) -> StoreDamaged:
    """The error for tombstones that cannot be read and may be nowhere else."""
    return StoreDamaged(
        f"{', '.join(map(str, kept.damaged))} cannot be read whole: it was damaged. It keeps what was deleted, and the "
        "database, restored from an older backup once, does not know all of that.",
        "Put the model's files `tombstones-*` from a backup that was made after the last `./lethe recover` in its "
        f"place: what they lack is added from the database. If there is none, `./lethe recover --accept-lost "
        f"{TOMBSTONES}` goes on with what can be read: whatever else was deleted and this database does not know is "
        "no longer told as deleted, nor kept out of a newly trained model.",
    )


async def keep_in_step(engine: Engine, store: Store, keyring: Keyring, lease: Lease) -> frozenset[bytes]:
    """Makes the store's record hold all tombstones that the database has; returns the hashes that it alone has.

    For a start, under the lease. Raises StoreDamaged, KeyMissing, Unavailable and OSError.
    """
    model = store.manifest.name
    kept = await asyncio.to_thread(store.tombstones)
    require_keys(kept, keyring)
    await require_readable(engine, kept, model)
    own = await only_in_store(engine, list(kept.hashes))
    async with transaction(engine) as connection:
        repository = TombstoneRepository(connection)
        keyring.check(await repository.key_fingerprints())
        if kept.is_tidy and await repository.count(model) == len(kept.hashes) - len(own):
            return own
        recorded = await repository.of_model(model)
    together = dict.fromkeys([*kept.tombstones, *as_kept(recorded, keyring)])
    await asyncio.to_thread(partial(store.replace_tombstones, together, fencing=lease.fencing))
    return own
