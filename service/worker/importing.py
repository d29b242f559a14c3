"""A newly trained model in place of the one that is served, without a moment in which nothing is predicted.

The command line puts a checked copy of the model beside the served one and asks for it in the database. The holder of
the lease carries it out between batches, in this order:

1. The staged model without what was deleted earlier becomes version N+1 in its own folder; nothing visible changes.
2. In one fenced transaction the pointer moves from N to N+1 and the import is `committed`.
3. Predictions come from the new model.
4. Its folder takes the place of the old one; what was deleted earlier, and the old folder, are erased from the disk.
5. The import is `completed`.

Before step 2 a crash changes nothing and the import is carried out anew; after it, `finish` repeats steps 4 and 5.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import structlog
import torch

from model_store.base_store import Base
from model_store.errors import ModelStoreError
from model_store.replacement import Replacement, clear_abandoned
from model_store.store import Store
from model_store.versions import VersionRef
from service.db.engine import Engine
from service.db.imports import ImportRepository
from service.db.pointers import PointerRepository
from service.db.transactions import CommitUnanswered, fenced_transaction, transaction
from service.domain.records import Imported, ModelImport, Pointer
from service.errors import LeaseLost, LetheError, Unavailable
from service.queue.outage import Outage
from service.unlearning.measurement import stored_span_residual
from service.unlearning.resident import Resident, version_state
from service.unlearning.snapshot import Snapshot
from service.vault.keyring import Keyring
from service.worker.lease_keeper import LeaseKeeper
from service.worker.readers import Readers
from service.worker.recovery import pointer_moved
from service.worker.tombstoned import Tombstoned, find_tombstoned

T = TypeVar("T")


class ImportRefused(LetheError):
    """A model that cannot take the served one's place."""

    slug = "import-refused"
    title = "Import refused"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A staged model, ready to be committed."""

    pointer: Pointer
    imported: Imported
    base: Base
    resident: Resident
    predictions: Snapshot


def refuse_deleted(tombstoned: Tombstoned) -> ImportRefused:
    """The refusal of a model that contains what was deleted."""
    return ImportRefused(
        f"The model contains what was deleted at users' requests: {tombstoned}.",
        "Train it on data without them, or import it with --exclude-deleted, which deletes them from it before it is "
        "served.",
    )


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
        device: torch.device | str,
    ) -> None:
        self._engine = engine
        self._keyring = keyring
        self._readers = readers
        self._executor = executor
        self._outage = outage
        self._device = device
        self._log = structlog.get_logger(__name__)

    async def open(self, model: str) -> ModelImport | None:
        """The import into `model` that has not ended."""
        async with transaction(self._engine) as connection:
            return await ImportRepository(connection).open(model)

    async def carry_out(
        self, wanted: ModelImport, pointer: Pointer, served: Store, known: AbstractSet[str], keeper: LeaseKeeper
    ) -> Candidate | None:
        """Steps 1 and 2; None when the model was refused, and then nothing has changed.

        `known` are the external ids of the served model's live nodes. Raises LeaseLost and Unavailable.
        """
        replacement = Replacement(served.path, str(wanted.id))
        try:
            candidate = await self._prepare(wanted, pointer, replacement, known, keeper)
        except (LeaseLost, Unavailable):
            raise
        except (LetheError, ModelStoreError) as error:
            await self._refuse(wanted, replacement, f"{error.detail} {error.remedy}", keeper)
            return None
        except Exception as error:  # noqa: BLE001 - whatever a model from outside brings about, the served one goes on
            self._log.exception("import.failed")
            refusal = f"The model could not be loaded ({type(error).__name__}). See the log of the service."
            await self._refuse(wanted, replacement, refusal, keeper)
            return None
        await self._commit(wanted, pointer, candidate, keeper)
        self._log.info("import.committed", version=candidate.pointer.version, nodes=candidate.imported.nodes)
        return candidate

    async def install(self, wanted: ModelImport, served: Store) -> Store:
        """The first part of step 4: the committed model is where the served one was."""
        replacement = Replacement(served.path, str(wanted.id))
        return await self._run(replacement.install)

    async def finish(self, wanted: ModelImport, store: Store, keeper: LeaseKeeper) -> None:
        """The rest of step 4, and step 5; `store` is the installed model, which the pointer names."""
        replacement = Replacement(store.path, str(wanted.id))
        base = await self._run(store.load_base)
        tombstoned = await find_tombstoned(self._engine, self._keyring, wanted.model, base.graph)
        fencing = keeper.lease.fencing
        await self._run(lambda: store.erase(tombstoned.erasure(), fencing=fencing))
        # The weights as trained knew what was deleted.
        await self._run(lambda: store.remove_versions(keep=store.current(), below_fencing=fencing))
        keeper.check()
        await self._run(replacement.erase_replaced)
        async with fenced_transaction(self._engine, keeper.lease) as connection:
            await ImportRepository(connection).complete(wanted.id)
        self._log.info("import.completed", model=wanted.model)

    async def clear_abandoned(self, served: Store, wanted: ModelImport | None, keeper: LeaseKeeper) -> None:
        """Removes what crashed or refused imports left on the disk."""
        keeper.check()
        ids = () if wanted is None else (str(wanted.id),)
        await self._run(lambda: clear_abandoned(served.path, wanted=ids))

    async def _prepare(
        self,
        wanted: ModelImport,
        pointer: Pointer,
        replacement: Replacement,
        known: AbstractSet[str],
        keeper: LeaseKeeper,
    ) -> Candidate:
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
        tombstoned = await find_tombstoned(self._engine, self._keyring, wanted.model, base.graph)
        if tombstoned and not wanted.exclude_deleted:
            raise refuse_deleted(tombstoned)
        public = int(base.public[np.concatenate([tombstoned.nodes, tombstoned.feature_rows])].sum())
        if store.manifest.spec.mlp_width and public:
            raise ImportRefused(
                f"{public} of the deleted nodes are declared public, and the model's MLP was trained on them.",
                "Train it without them: what an MLP has learned cannot be projected out of it.",
            )
        fencing = keeper.lease.fencing
        return await self._run(lambda: _candidate(store, base, tombstoned, pointer, fencing, self._device))

    async def _commit(self, wanted: ModelImport, before: Pointer, candidate: Candidate, keeper: LeaseKeeper) -> None:
        """Steps 2 and 3."""
        try:
            async with fenced_transaction(self._engine, keeper.lease) as connection:
                await PointerRepository(connection).advance(before.version, candidate.pointer)
                await ImportRepository(connection).commit(wanted.id, candidate.imported)
        except CommitUnanswered:
            # Which version is the committed one is unknown until the pointer has been read.
            self._readers.suspend("the database did not answer a commit")
            if not await pointer_moved(self._engine, keeper, candidate.pointer, self._outage):
                self._readers.resume()
                raise
        graph = candidate.base.graph
        public = candidate.resident.public
        self._readers.load(graph.node_ids, graph.class_names, candidate.predictions, public=public)

    async def _refuse(self, wanted: ModelImport, replacement: Replacement, refusal: str, keeper: LeaseKeeper) -> None:
        self._log.warning("import.refused", model=wanted.model, reason=refusal)
        async with fenced_transaction(self._engine, keeper.lease) as connection:
            await ImportRepository(connection).refuse(wanted.id, refusal)
        await self._run(replacement.discard)

    async def _run(self, work: Callable[[], T]) -> T:
        """Blocking `work` on the executor, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _candidate(
    store: Store, base: Base, tombstoned: Tombstoned, before: Pointer, fencing: int, device: torch.device | str
) -> Candidate:
    """Step 1, always from the model as it was trained: an attempt that was interrupted has left that untouched."""
    trained = store.versions()[0]
    state = store.read_version(trained)
    if not state.live.all():
        raise ImportRefused(
            f"The model is not newly trained: {int((~state.live).sum())} of its nodes have been deleted.",
            "Import the folder that `./lethe train` wrote, before it was served.",
        )
    directions_removed = 0
    ref = VersionRef(before.version + 1, fencing)
    if tombstoned:
        resident = Resident.load(store.manifest, base, state, before.version, device)
        prepared = resident.prepare(tombstoned.removals())
        directions_removed = prepared.projection.directions_removed
        resident.commit(prepared)
    else:
        resident = Resident.load(store.manifest, base, state, ref.version, device)
    predictions = resident.predictions()
    if not np.isfinite(predictions.probabilities).all():
        raise ImportRefused("The model's predictions are not finite.", "Train it again.")
    digest = store.write_version(ref, version_state(resident.state))
    store.set_current(ref)
    pointer = Pointer(before.model, ref.version, ref.fencing, ref.folder, digest, store.weights_sha256(ref))
    imported = Imported(
        version_before=before.version,
        version_after=ref.version,
        weights_sha256_before=before.weights_sha256,
        weights_sha256_after=pointer.weights_sha256,
        nodes=store.manifest.nodes,
        excluded_nodes=int(tombstoned.nodes.size),
        excluded_features=int(tombstoned.feature_rows.size),
        excluded_edges=int(tombstoned.edges.shape[0]),
        directions_removed=directions_removed,
        span_residual=stored_span_residual(store, ref, digest=digest),
    )
    return Candidate(pointer, imported, base, resident, predictions)
