"""The store's own record of tombstones beside the database's, which while Lethe runs is the one that is asked.

See `model_store.tombstones`. `lethe recover` takes over into the database what the record alone has.
"""

from collections.abc import Iterable
from functools import partial

import structlog

from model_store.errors import StoreDamaged
from model_store.store import Store
from model_store.tombstones import KEY_BYTES, Kept, KeptTombstone
from service.db.engine import Engine
from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.records import Tombstone
from service.errors import KeyMissing, StateMismatch
from service.tombstones.repository import TombstoneRepository
from service.vault.keyring import Keyring
from service.versions.context import Context
from service.versions.lease_keeper import LeaseKeeper

#: By this name an operator accepts that some of the record are lost.
TOMBSTONES = "tombstones"
_BY_CODE = {kind.rules.tombstone_code: kind for kind in RequestKind}


def for_store(tombstones: Iterable[Tombstone], keyring: Keyring) -> list[KeptTombstone]:
    """The same as the store keeps it, without the request; `keyring` has the keys that made them."""
    keys = {number: fingerprint[:KEY_BYTES] for number, fingerprint in keyring.fingerprints().items()}
    return [KeptTombstone(one.hash, keys[one.key_number], one.kind.rules.tombstone_code) for one in tombstones]


async def only_in_store(engine: Engine, kept: Kept, keyring: Keyring) -> list[Tombstone]:
    """What the record has and the database does not know.

    Raises Unavailable, and KeyMissing for what was made with a key that is not here: what it names could not be told.
    """
    numbers = {fingerprint[:KEY_BYTES]: number for number, fingerprint in keyring.fingerprints().items()}
    of_others = sum(one.key not in numbers for one in kept.tombstones)
    if of_others:
        raise KeyMissing(
            f"{of_others} of the model's tombstones were made with a key that is not in the key folder.",
            "Restore the key folder that belongs to the model; until then, deleted and unknown nodes look the "
            "same. If it is lost for good, move the files `tombstones-*` out of the model's folder. A newly "
            "trained model may then contain what they name.",
        )
    async with transaction(engine) as connection:
        known = await TombstoneRepository(connection).find(kept.hashes)
    unknown = [one for one in kept.tombstones if one.hash not in known]
    return [Tombstone(_BY_CODE[one.code], one.hash, numbers[one.key], None) for one in unknown]


def unreadable(kept: Kept) -> StoreDamaged:
    """The error for tombstones that cannot be read and may be nowhere else."""
    return StoreDamaged(
        f"{', '.join(map(str, kept.damaged))} is damaged. It records deletions that the database, restored from "
        "an older backup, does not have.",
        "Replace it with the files `tombstones-*` from the newest backup of the model; the database adds what "
        "they lack. If there is none, `./lethe recover --accept-lost {TOMBSTONES}` continues with what can be "
        "read. Other deletions that this database does not have are forgotten: such nodes look unknown, and a "
        "newly trained model may contain them.",
    )


async def reconcile(context: Context, store: Store, keeper: LeaseKeeper) -> None:
    """Makes the store's record that of the database, of the same moment; damage is mended by that.

    Raises StateMismatch when the record has what the database does not know, KeyMissing, Unavailable and OSError.
    """
    kept = await context.run(store.tombstones)
    if own := await only_in_store(context.engine, kept, context.keyring):
        raise StateMismatch(
            f"The model has {len(own)} tombstones that the database does not have: the database was restored "
            "from an older backup.",
            f"Nothing was removed. Restore store and database from the same backup. {StateMismatch.RECOVER}",
        )
    async with transaction(context.engine) as connection:
        repository = TombstoneRepository(connection)
        context.keyring.check(await repository.key_fingerprints())
        if kept.is_tidy and await repository.count(context.model) == len(kept.hashes):
            return
        recorded = await repository.of_model(context.model)
    if kept.damaged:
        structlog.get_logger(__name__).warning("tombstones.damaged", model=context.model, readable=len(kept.tombstones))
    together = for_store(recorded, context.keyring)
    await context.run(partial(store.replace_tombstones, together, fencing=keeper.lease.fencing))
