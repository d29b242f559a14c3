"""A newly trained model in place of the one that is served, without a moment in which nothing is predicted.

The command line puts a checked copy of the model beside the served one and asks for it in the database. The holder of
the lease carries it out between batches, in this order:

1. The staged model without what was deleted earlier becomes version N+1 in its own folder; nothing visible changes.
   Under the policy `always` it is repaired first, however long that takes: in slices, between which deletions are
   applied to the served model and then to the staged one as well, and after each of which it can be given up.
2. In one fenced transaction the pointer moves from N to N+1 and the import is `committed`.
3. Predictions come from the new model.
4. Its folder takes the place of the old one; what was deleted earlier, and the old folder, are erased from the disk,
   and the span coefficients of a repaired model are written.
5. The import is `completed`.

Before step 2 a crash changes nothing and the import is carried out anew; after it, the next start repeats steps 4
and 5.
"""

import asyncio
import errno
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import structlog

from model_store.base_store import Base
from model_store.manifest import Manifest
from model_store.replacement import Replacement, clear_abandoned
from model_store.store import Store
from projector.errors import ProjectorError
from projector.forgetting.status import RepairStatus
from service import failure_points
from service.db.engine import Engine
from service.db.imports import ImportRepository
from service.db.pointers import PointerRepository
from service.db.repairs import RepairRepository
from service.db.transactions import CommitUnanswered, fenced_transaction, transaction
from service.domain.records import ModelImport, Pointer
from service.errors import LeaseLost, LetheError, Unavailable
from service.failure_points import FailurePoint
from service.queue.outage import Outage
from service.unlearning.placement import Placement
from service.vault.keyring import Keyring
from service.worker.candidate import Candidate, ImportRefused, Staged
from service.worker.lease_keeper import LeaseKeeper
from service.worker.outcomes import without_version
from service.worker.readers import Readers
from service.worker.recovery import pointer_moved
from service.worker.tombstoned import Tombstoned, find_tombstoned

T = TypeVar("T")

#: Longest repair of a staged model between two looks for new requests (seconds).
_SLICE_S = 0.25
#: What a disk says that is full, or that has given its user all it may have.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Shortest wait after an attempt that found no room (seconds), and how many times the length of the attempt it lasts:
#: loading a model that cannot be taken over yet must not be what the unlearner does most of the time.
_REST_S = 5.0
_REST_TIMES = 10
_LONGEST_REST_S = 300.0
_REPLACED = "The repair was given up before it ended: a newly trained model has taken this one's place."


def refuse_deleted(tombstoned: Tombstoned) -> ImportRefused:
    """The refusal of a model that contains what was deleted."""
    return ImportRefused(
        f"The model contains what was deleted at users' requests: {tombstoned}.",
        "Train it on data without them, or import it with --exclude-deleted, which deletes them from it before it is "
        "served.",
    )


@dataclass
class _UnderWay:
    """An import whose model is on the device, and not committed."""

    wanted: ModelImport
    replacement: Replacement
    staged: Staged
    #: The served version whose tombstones it was last compared with; None before the first time.
    seen: int | None = None


class Importer:
    """Carries out imports, under the lease of the model that is replaced."""

    def __init__(
        self,
        *,
        engine: Engine,
        keyring: Keyring,
        readers: Readers,
        executor: Executor,
        outage: Outage,
        placement: Placement,
    ) -> None:
        self._engine = engine
        self._keyring = keyring
        self._readers = readers
        self._executor = executor
        self._outage = outage
        self._placement = placement
        self._under_way: _UnderWay | None = None
        #: `time.monotonic()` at which the attempt began, and before which there is no further one.
        self._begun_at = self._rests_until = 0.0
        #: Why the import that is wanted does not go on at present; None when it does, or when there is none.
        self.reason: str | None = None
        self._log = structlog.get_logger(__name__)

    @property
    def is_under_way(self) -> bool:
        """Whether there is more to do for an import right now."""
        return self._under_way is not None

    def give_up(self) -> None:
        """Forgets how far an import has come; it stays wanted, and begins again."""
        self._under_way = None
        self.reason = None
        self._rests_until = 0.0

    async def open(self, model: str) -> ModelImport | None:
        """The import into `model` that has not ended."""
        async with transaction(self._engine) as connection:
            return await ImportRepository(connection).open(model)

    async def step(
        self, wanted: ModelImport, pointer: Pointer, served: Store, known: AbstractSet[str], keeper: LeaseKeeper
    ) -> Candidate | None:
        """A slice of step 1 and, at its end, step 2; None before that.

        None as well when the model was refused, and when the disk has no room for it, which is waited for: nothing has
        changed then. `known` are the external ids of the served model's live nodes. Raises LeaseLost and Unavailable.
        """
        if time.monotonic() < self._rests_until:
            return None
        replacement = Replacement(served.path, str(wanted.id))
        try:
            under_way = self._under_way
            if under_way is None or under_way.wanted.id != wanted.id:
                self._begun_at = time.monotonic()
                staged = await self._staged(wanted, replacement, served, known)
                under_way = self._under_way = _UnderWay(wanted, replacement, staged)
            if not await self._is_ready(under_way, served, pointer):
                return None
            fencing = keeper.lease.fencing
            candidate = await self._run(lambda: under_way.staged.write(pointer, fencing))
        except (LeaseLost, Unavailable):
            raise
        except (LetheError, ProjectorError) as error:
            await self._refuse(wanted, replacement, f"{error.detail} {error.remedy}", keeper)
            return None
        except Exception as error:  # noqa: BLE001 - whatever a model from outside brings about, the served one goes on
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                self._rest(error)
                return None
            self._log.exception("import.failed")
            refusal = f"The model could not be loaded ({type(error).__name__}). See the log of the service."
            await self._refuse(wanted, replacement, refusal, keeper)
            return None
        failure_points.reached(FailurePoint.IMPORT_STAGED)
        await self._commit(wanted, pointer, candidate, served.manifest, keeper)
        failure_points.reached(FailurePoint.IMPORT_COMMITTED)
        self.give_up()
        self._log.info("import.committed", version=candidate.pointer.version, nodes=candidate.imported.nodes)
        return candidate

    async def install(self, wanted: ModelImport, served: Store) -> Store:
        """The first part of step 4: the committed model is where the served one was."""
        replacement = Replacement(served.path, str(wanted.id))
        return await self._run(replacement.install)

    async def erase(self, wanted: ModelImport, store: Store, keeper: LeaseKeeper) -> None:
        """The erasures of step 4; `store` is the installed model, which the pointer names."""
        replacement = Replacement(store.path, str(wanted.id))
        base = await self._run(store.load_base)
        tombstoned = await self._tombstoned(wanted, base, store)
        fencing = keeper.lease.fencing
        await self._run(lambda: store.erase(tombstoned.erasure(), fencing=fencing))
        # The weights as trained knew what was deleted.
        await self._run(lambda: store.remove_versions(keep=store.current(), below_fencing=fencing))
        keeper.check()
        await self._run(replacement.erase_replaced)

    async def complete(self, wanted: ModelImport, keeper: LeaseKeeper) -> None:
        """Step 5, once the disk holds what belongs to the committed model and nothing else."""
        async with fenced_transaction(self._engine, keeper.lease) as connection:
            await ImportRepository(connection).complete(wanted.id)
        self._log.info("import.completed", model=wanted.model)

    async def clear_abandoned(self, served: Store, wanted: ModelImport | None, keeper: LeaseKeeper) -> None:
        """Removes what crashed or refused imports left on the disk."""
        keeper.check()
        ids = () if wanted is None else (str(wanted.id),)
        await self._run(lambda: clear_abandoned(served.path, wanted=ids))

    async def _staged(
        self, wanted: ModelImport, replacement: Replacement, served: Store, known: AbstractSet[str]
    ) -> Staged:
        """The staged model as it was trained, on the device, once it is known to be one for this place."""
        store = await self._run(lambda: Store.open(replacement.staged))
        if store.manifest.name != wanted.model:
            raise ImportRefused(
                f"The model is named {store.manifest.name!r}, the served one {wanted.model!r}.",
                f"Train it with --name {wanted.model}, or serve it from a LETHE_HOME of its own.",
            )
        base = await self._run(store.load_base)
        if known and known.isdisjoint(base.graph.node_ids):
            raise ImportRefused(
                f"None of the {len(known)} nodes that are served is in the model: it is of another graph.",
                "Serve it from a LETHE_HOME of its own, or give its nodes the ids they have here.",
            )
        self._check(wanted, store, base, await self._tombstoned(wanted, base, served))
        return await self._run(lambda: Staged.load(store, base, self._placement))

    async def _is_ready(self, under_way: _UnderWay, served: Store, pointer: Pointer) -> bool:
        """Works for a slice; whether the staged model is without all that is tombstoned, and repaired.

        What is deleted meanwhile is taken out once the repair under way has ended, so that this always comes to an end.
        """
        staged, until = under_way.staged, time.monotonic() + _SLICE_S
        if not await self._run(lambda: staged.advance(until)):
            return False
        if under_way.seen != pointer.version:
            tombstoned = await self._tombstoned(under_way.wanted, staged.base, served)
            self._check(under_way.wanted, staged.store, staged.base, tombstoned)
            await self._run(lambda: staged.exclude(tombstoned))
            under_way.seen = pointer.version
        return await self._run(lambda: staged.advance(until))

    async def _tombstoned(self, wanted: ModelImport, base: Base, served: Store) -> Tombstoned:
        """What of `base` was deleted, as the database and the model `served` know."""
        kept = await self._run(served.tombstones)
        return await find_tombstoned(self._engine, self._keyring, wanted.model, base.graph, kept)

    def _check(self, wanted: ModelImport, store: Store, base: Base, tombstoned: Tombstoned) -> None:
        """Raises ImportRefused for a model that must not be served for what is `tombstoned` in it."""
        if tombstoned and not wanted.exclude_deleted:
            raise refuse_deleted(tombstoned)
        public = int(base.public[np.concatenate([tombstoned.nodes, tombstoned.feature_rows])].sum())
        if store.manifest.spec.mlp_width and public:
            raise ImportRefused(
                f"{public} of the deleted nodes are declared public, and the model's MLP was trained on them.",
                "Train it without them: what an MLP has learned cannot be projected out of it.",
            )

    async def _commit(
        self, wanted: ModelImport, before: Pointer, candidate: Candidate, replaced: Manifest, keeper: LeaseKeeper
    ) -> None:
        """Steps 2 and 3."""
        try:
            async with fenced_transaction(self._engine, keeper.lease) as connection:
                await PointerRepository(connection).advance(before.version, candidate.pointer)
                await ImportRepository(connection).commit(wanted.id, candidate.imported)
                repairs = RepairRepository(connection)
                pending = await repairs.pending(wanted.model)
                await repairs.end([without_version(one, RepairStatus.NONE, _REPLACED, replaced) for one in pending])
                failure_points.reached(FailurePoint.IMPORT_COMMITTING)
        except CommitUnanswered:
            # Which version is the committed one is unknown until the pointer has been read.
            self._readers.suspend("the database did not answer a commit")
            if not await pointer_moved(self._engine, keeper, candidate.pointer, self._outage):
                self._readers.resume()
                raise
        graph = candidate.base.graph
        public = candidate.resident.public
        self._readers.load(graph.node_ids, graph.class_names, candidate.predictions, public=public)

    def _rest(self, error: OSError) -> None:
        """Waits for room, which is no fault of the model's; whatever else there is to do goes on."""
        self.give_up()
        now = time.monotonic()
        rest = min(max(_REST_S, _REST_TIMES * (now - self._begun_at)), _LONGEST_REST_S)
        self.reason, self._rests_until = f"An import waits for room on the disk: {error.strerror}.", now + rest
        self._log.warning("import.waits", retry_in_s=round(rest, 3), reason=self.reason)

    async def _refuse(self, wanted: ModelImport, replacement: Replacement, refusal: str, keeper: LeaseKeeper) -> None:
        self.give_up()
        self._log.warning("import.refused", model=wanted.model, reason=refusal)
        async with fenced_transaction(self._engine, keeper.lease) as connection:
            await ImportRepository(connection).refuse(wanted.id, refusal)
        await self._run(replacement.discard)

    async def _run(self, work: Callable[[], T]) -> T:
        """Blocking `work` on the executor, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
