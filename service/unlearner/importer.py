"""Replace the served model with a newly trained one, without interrupting predictions."""

import asyncio
import contextlib
import errno
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import numpy as np
import structlog

from model_store.base.base import Base
from model_store.errors import ImportUnderWay
from model_store.manifest import Manifest
from model_store.replacement import Replacement, clear_abandoned, copying_lock
from model_store.store import Store
from model_store.versions import VersionRef
from model_store.work import Work
from projector.errors import ExplainedError
from projector.forgetting.status import RepairStatus
from projector.graph.external_ids import NodeIds
from service import failure_points
from service.access.keyring import Keyring
from service.db.engine import Connection, Engine
from service.db.transactions import CommitUnanswered, fenced_transaction, transaction
from service.domain.records import Pointer
from service.domain.states import Cause, EventType, RepairPolicy
from service.domain.versions import ModelImport, Version
from service.errors import LeaseLost, Unavailable
from service.failure_points import FailurePoint
from service.log.events import EventRepository
from service.log.leaves import ModelImported
from service.observability.tracing import stepped
from service.unlearner.causes import ImportRepository
from service.unlearner.context import Context
from service.unlearner.deleted_parts import DeletedParts, find_deleted_parts
from service.unlearner.lease_keeper import LeaseKeeper
from service.unlearner.new_version import NO_EDGES, CauseSteps, Stopwatch
from service.unlearner.outcomes import repair_given_up
from service.unlearner.pending_repairs import PendingRepairs
from service.unlearner.staged import Candidate, ImportRefused, Staged
from service.unlearner.version_writer import VersionWriter

#: Maximum repair time of a staged model between two checks for new requests (seconds).
_SLICE_S = 0.25
#: The errors of a full disk or an exhausted quota.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Minimum wait after an attempt without disk space (seconds), and the wait as a multiple of the attempt's length:
#: loading a model that does not fit yet must not become most of the unlearner's work.
_REST_S = 5.0
_REST_TIMES = 10
_LONGEST_REST_S = 300.0
_REPAIRING = "Repairing the model"
_REPLACED = "The repair was abandoned: a newly trained model replaced this one."


def refuse_deleted(deleted_parts: DeletedParts) -> ImportRefused:
    """Build the refusal of a model that contains deleted data."""
    return ImportRefused(
        f"The model contains data that was deleted on request: {deleted_parts}.",
        "Train it on data without them, with unchanged ids for all others, or import it with --exclude-deleted, "
        "which deletes them before the model is served. If a person returns, add the node with `rejoin`.",
    )


class ImportSteps(CauseSteps):
    """The steps that an import adds to those of every version."""

    cause = Cause.IMPORT

    def __init__(self, context: Context, replacement: Replacement, staged: Store, replaced: Manifest) -> None:
        """`staged` is the new model, which takes the place of `replaced`."""
        self._context = context
        self._replacement = replacement
        self._staged = staged
        self._replaced = replaced

    def written(self, ref: VersionRef) -> None:
        """Complete the new model's folder, ready to replace the served one."""
        self._staged.claim_base(fencing=ref.fencing)
        self._staged.set_current(ref)

    async def record(self, connection: Connection, version: Version) -> None:
        """Commit and log the import, and end all pending repairs of the replaced model."""
        await ImportRepository(connection).commit(version.id)
        await EventRepository(connection).append_unrequested(EventType.IMPORTED, ModelImported(version))
        repairs = PendingRepairs(connection)
        pending = await repairs.pending(version.model)
        await repairs.end([repair_given_up(one, RepairStatus.NONE, _REPLACED, self._replaced) for one in pending])

    def erase(self) -> None:
        """Erase the replaced model."""
        self._replacement.erase_replaced()

    async def complete(self, connection: Connection, version: Version) -> None:
        """Complete the import: only the committed model is left on the disk."""
        await ImportRepository(connection).complete(version.id)


@dataclass
class _UnderWay:
    """An import whose model is on the device but not committed."""

    wanted: ModelImport
    replacement: Replacement
    staged: Staged
    #: The served version whose tombstones were compared last; None before the first comparison.
    seen: int | None = None


class Importer:
    """Carries out imports, under the lease of the model that is replaced."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._under_way: _UnderWay | None = None
        #: `time.monotonic()` at the start of the attempt, and before which no other attempt starts.
        self._begun_at = self._rests_until = 0.0
        #: Why the requested import is waiting; None if it is not, or if there is none.
        self.reason: str | None = None
        self._log = structlog.get_logger(__name__)

    @property
    def is_under_way(self) -> bool:
        """Whether an import has more work right now."""
        return self._under_way is not None

    def give_up(self) -> None:
        """Forget an import's progress; it stays requested and starts over."""
        self._under_way = None
        self._context.work.end()
        self.reason = None
        self._rests_until = 0.0

    async def open(self) -> ModelImport | None:
        """Return the model's open import, or None."""
        async with transaction(self._context.engine) as connection:
            return await ImportRepository(connection).open(self._context.model)

    async def step(
        self, wanted: ModelImport, pointer: Pointer, served: Store, known: NodeIds, keeper: LeaseKeeper
    ) -> Candidate | None:
        """Work on the import for one slice; return the candidate once committed, None before.

        Also returns None if the model was refused, or if the import must wait for disk space. Nothing has changed then.
        `known` are the external ids of the served model's live nodes. Raises LeaseLost and Unavailable.
        """
        if time.monotonic() < self._rests_until:
            return None
        context, replacement, watch = self._context, Replacement(served.path, str(wanted.id)), Stopwatch()
        try:
            under_way = self._under_way
            if under_way is None or under_way.wanted.id != wanted.id:
                self._begun_at = time.monotonic()
                staged = await self._staged(wanted, replacement, known, keeper.lease.fencing)
                under_way = self._under_way = _UnderWay(wanted, replacement, staged)
            if not await self._is_ready(under_way, pointer, known, served.manifest.nodes):
                return None
            staged = under_way.staged
            failure_points.reached(FailurePoint.COMPUTED, Cause.IMPORT)
            context.work.begin("Predicting every node", staged.resident.committed.sweep_columns)
            new = await context.run(partial(staged.version, pointer))
            new = replace(new, id=wanted.id)
            steps = ImportSteps(context, replacement, staged.store, served.manifest)
            trained = staged.store.versions()[0]
            writer = VersionWriter(context, keeper, staged.store, staged.resident, pointer, NO_EDGES, made_from=trained)
            version = await writer.write(new, steps, watch)
            # Before it is served, because the log entry includes it.
            context.work.begin("Measuring the span residual")
            version = replace(version, span_residual=await context.run(partial(staged.span_residual, version)))
        except (LeaseLost, Unavailable):
            raise
        except ExplainedError as error:
            await self._refuse(wanted, replacement, f"{error.detail} {error.remedy}", keeper)
            return None
        except Exception as error:  # noqa: BLE001 - no fault of an imported model may stop the served one
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                self._rest(error)
                return None
            self._log.exception("import.failed")
            refusal = f"The model could not be loaded ({type(error).__name__}). Check the log of the service."
            await self._refuse(wanted, replacement, refusal, keeper)
            return None
        await stepped("import", writer.commit(version, new, steps, watch))
        self.give_up()
        self._log.info("import.committed", version=version.number, nodes=version.live_nodes)
        return Candidate(version.pointer, staged.resident)

    async def clear_abandoned(self, served: Store, keeper: LeaseKeeper) -> None:
        """Remove the leftovers of crashed or refused imports from the disk; do nothing during a copy."""
        keeper.check()
        with contextlib.suppress(ImportUnderWay), copying_lock(served.path):
            # Only under the lock: otherwise the copy of a new import would look abandoned.
            wanted = await self.open()
            ids = () if wanted is None else (str(wanted.id),)
            await self._context.run(lambda: clear_abandoned(served.path, wanted=ids))

    async def _staged(self, wanted: ModelImport, replacement: Replacement, known: NodeIds, fencing: int) -> Staged:
        """Load the staged model as trained onto the device, after checking that it fits this service."""
        store = await self._context.run(lambda: Store.open(replacement.staged))
        if store.manifest.name != wanted.model:
            raise ImportRefused(
                f"The model is named {store.manifest.name!r}; the served model is {wanted.model!r}.",
                f"Train it with --name {wanted.model}, or serve it from a LETHE_HOME of its own.",
            )
        if store.fencing() > fencing:
            raise ImportRefused(
                f"The model was served elsewhere under a higher fencing number ({store.fencing()}) than that of "
                f"this service ({fencing}), so it could not be written here.",
                "Import the folder as `./lethe train` wrote it.",
            )
        base = await self._context.run(partial(store.load_base, self._context.work))
        served = int(known.named.sum())
        if served and (await self._context.run(lambda: known.rows_of(base.graph.node_ids)) < 0).all():
            raise ImportRefused(
                f"The model contains none of the {served} served nodes: it belongs to another graph.",
                "Serve it from its own LETHE_HOME, or use the same node ids.",
            )
        self._check(wanted, store, base, await self._deleted_parts(base))
        return await self._context.run(lambda: Staged.load(store, base, self._context.placement, self._context.work))

    async def _is_ready(self, under_way: _UnderWay, pointer: Pointer, known: NodeIds, imported: int) -> bool:
        """Work for one slice; return whether the staged model is repaired and free of all tombstoned data.

        Of the served model's nodes `known`, those from row `imported` on were added by request. Targets deleted
        meanwhile are removed after the current repair, so that this always terminates.
        """
        staged, until = under_way.staged, time.monotonic() + _SLICE_S
        if not staged.is_repaired and self._context.work.what != _REPAIRING:
            self._context.work.begin(_REPAIRING)
        if not await self._context.run(lambda: staged.advance(until)):
            return False
        if under_way.seen != pointer.version:
            deleted_parts = await self._deleted_parts(staged.base)
            self._check(under_way.wanted, staged.store, staged.base, deleted_parts)
            await self._context.run(lambda: self._check_added(under_way.wanted, staged.base, known, imported))
            await self._context.run(lambda: staged.exclude(deleted_parts))
            under_way.seen = pointer.version
        return await self._context.run(lambda: staged.advance(until))

    async def _deleted_parts(self, base: Base) -> DeletedParts:
        context = self._context
        return await find_deleted_parts(context.engine, context.keyring, context.model, base.graph, work=context.work)

    def _check(self, wanted: ModelImport, store: Store, base: Base, deleted_parts: DeletedParts) -> None:
        """Raise ImportRefused if the model's deleted parts forbid serving it."""
        if deleted_parts and not wanted.exclude_deleted:
            raise refuse_deleted(deleted_parts)
        rows = (deleted_parts.nodes, deleted_parts.feature_rows, deleted_parts.labels)
        public = int(base.public[np.concatenate(rows)].sum())
        if deleted_parts.labels.size and self._context.placement.policy is RepairPolicy.NEVER:
            raise ImportRefused(
                f"The model was trained on {deleted_parts.labels.size} labels that were withdrawn from training.",
                "Train it without them, or serve it with --repair always, which retrains it.",
            )
        if store.manifest.spec.mlp_width and public:
            raise ImportRefused(
                f"{public} nodes of which something was deleted are declared public, and the model's MLP was trained "
                "on them.",
                "Train it without them: an MLP cannot forget by projection.",
            )

    def _check_added(self, wanted: ModelImport, base: Base, known: NodeIds, imported: int) -> None:
        """Raise ImportRefused if the model lacks nodes that were added to the served one, unless that was said.

        How a corrected node is described, and which edges it has, is for the new model to say.
        """
        added = imported + np.flatnonzero(known.named[imported:])
        lacking = int((base.graph.node_ids.rows_of(known.take(added)) < 0).sum())
        if not lacking:
            return
        if not wanted.without_added:
            raise ImportRefused(
                f"The model lacks {lacking} of the {added.size} nodes that were added to the served one by request.",
                "Train it on data with them, or import it with --without-added and add them again.",
            )
        self._log.warning("import.without_added", model=wanted.model, nodes=lacking)

    def _rest(self, error: OSError) -> None:
        """Wait for disk space, which is not the model's fault; other work continues."""
        self.give_up()
        now = time.monotonic()
        rest = min(max(_REST_S, _REST_TIMES * (now - self._begun_at)), _LONGEST_REST_S)
        self.reason, self._rests_until = f"An import is waiting for disk space: {error.strerror}.", now + rest
        self._log.warning("import.waits", retry_in_s=round(rest, 3), reason=self.reason)

    async def _refuse(self, wanted: ModelImport, replacement: Replacement, refusal: str, keeper: LeaseKeeper) -> None:
        self.give_up()
        self._log.warning("import.refused", model=wanted.model, reason=refusal)
        async with fenced_transaction(self._context.engine, keeper.lease) as connection:
            await ImportRepository(connection).refuse(wanted.id, refusal)
        await self._context.run(replacement.discard)


async def request_import(
    engine: Engine,
    keyring: Keyring,
    served: Path,
    *,
    exclude_deleted: bool,
    without_added: bool = False,
    provide: Callable[[Path], Store],
    work: Work | None = None,
) -> UUID:
    """Request that the lease holder replace the model in `served`; return the import's id.

    `provide` writes the new model to the given folder. Foreseeable refusals are raised here, so that the operator
    learns of them immediately. The lease holder checks again. All work is steps of `work`.

    Raises:
        ImportRefused: the model contains deleted data.
        ImportUnderWay, Conflict: another import is open.
        ProjectorError: the model cannot be read or created.
    """
    import_id = uuid4()
    replacement = Replacement(served, str(import_id))
    model = (await asyncio.to_thread(Store.open, served)).manifest.name
    with copying_lock(served):
        try:
            store = await asyncio.to_thread(replacement.stage, provide, work)
            if not exclude_deleted:
                base = await asyncio.to_thread(store.load_base, work)
                deleted_parts = await find_deleted_parts(engine, keyring, model, base.graph, work=work)
                if deleted_parts:
                    raise refuse_deleted(deleted_parts)
            async with transaction(engine) as connection:
                await ImportRepository(connection).ask(
                    import_id, model, exclude_deleted=exclude_deleted, without_added=without_added
                )
        except CommitUnanswered:
            # The request may have been recorded; if not, the unlearner's next session removes the copy.
            raise
        except BaseException:
            await asyncio.to_thread(replacement.discard)
            raise
    return import_id
