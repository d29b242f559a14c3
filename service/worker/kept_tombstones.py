"""The store's own record of tombstones, kept in step with the database's: see `model_store.tombstones`."""

import asyncio
from collections.abc import Iterable, Sequence

import structlog

from model_store.store import Store
from model_store.tombstones import KEY_BYTES, Kept, KeptTombstone
from service.db.engine import Engine
from service.db.tombstones import TombstoneRepository
from service.db.transactions import transaction
from service.domain.records import Tombstone
from service.domain.states import RequestKind
from service.errors import KeyMissing
from service.vault.keyring import Keyring

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
            "for good, move the file `tombstones` out of the model's folder: nothing then keeps what it names out of "
            "a newly trained model.",
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


async def keep_in_step(engine: Engine, store: Store, keyring: Keyring, model: str) -> frozenset[bytes]:
    """Makes the store's record hold all tombstones that the database has; returns the hashes that it alone has.

    For a start, under the lease. Raises KeyMissing, Unavailable and OSError.
    """
    kept = await asyncio.to_thread(store.tombstones)
    require_keys(kept, keyring)
    if not kept.is_whole:
        structlog.get_logger(__name__).warning("tombstones.damaged", model=model, readable=len(kept.tombstones))
    own = await only_in_store(engine, list(kept.hashes))
    async with transaction(engine) as connection:
        repository = TombstoneRepository(connection)
        if kept.is_whole and await repository.count(model) == len(kept.hashes) - len(own):
            return own
        recorded = await repository.of_model(model)
    await asyncio.to_thread(store.replace_tombstones, dict.fromkeys([*kept.tombstones, *as_kept(recorded, keyring)]))
    return own
