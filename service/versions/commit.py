"""The pointer to a committed version: made of a version, and read after a commit that was not answered."""

from model_store.store import Store
from model_store.versions import VersionRef
from service.db.engine import Engine
from service.db.fencing import wait_for_writers
from service.db.transactions import transaction
from service.domain.records import Pointer
from service.errors import Unavailable
from service.queue.outage import Outage
from service.versions.lease_keeper import LeaseKeeper
from service.versions.pointers import PointerRepository


def pointer_to(store: Store, ref: VersionRef, model: str) -> Pointer:
    """A version of the store, as a pointer names it."""
    return Pointer(model, ref.version, ref.fencing, ref.folder, store.version_digest(ref), store.weights_sha256(ref))


async def pointer_moved(engine: Engine, keeper: LeaseKeeper, pointer: Pointer, outage: Outage) -> bool:
    """After an unanswered commit: whether `pointer` is the committed one, however long it takes to learn that.

    Raises LeaseLost.
    """
    while True:
        try:
            async with transaction(engine) as connection:
                await wait_for_writers(connection, keeper.lease)
                found = await PointerRepository(connection).read(pointer.model)
        except Unavailable as error:
            await outage.pause(error)
        else:
            outage.reason = None
            return found == pointer
