"""Check at startup that store and database agree on the committed version, and find the steps it still needs."""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from model_store.replacement import Replacement
from model_store.store import Store
from model_store.versions import VersionRef
from projector.graph.external_ids import NodeIds
from service.access.request_keys import RequestKeys, decrypt_targets
from service.db.engine import Connection
from service.db.lease import holder
from service.db.transactions import fenced_transaction, transaction
from service.domain.kinds import Part
from service.domain.records import Lease, Pointer, QueuedRequest
from service.domain.states import Cause, ImportStatus
from service.domain.versions import Version
from service.errors import ConfigurationError, KeyMissing, StateMismatch
from service.predictions.version_rows import BatchRepository, PointerRepository, VersionRepository
from service.unlearner.batch_steps import BatchSteps
from service.unlearner.causes import ImportRepository, RecoveryRepository
from service.unlearner.context import Context
from service.unlearner.importer import ImportSteps
from service.unlearner.lease_keeper import pointer_to
from service.unlearner.new_version import CauseSteps
from service.unlearner.repairer import CertificationSteps, RepairSteps
from service.unlearner.version_writer import VersionWriter


async def agreed_pointer(context: Context, store: Store, lease: Lease) -> Pointer:
    """Return the committed version from the database after checking that the store agrees with it.

    A new database takes over a store that has never deleted anything. A store behind its own committed folder (a crash
    between the pointer's commit and CURRENT) is rolled forward.

    Raises StateMismatch if either was restored from a backup, or if the database belongs to another model. Nothing is
    removed then.
    """
    current = store.current()
    async with fenced_transaction(context.engine, lease) as connection:
        pointer = await _committed(connection, context.model)
        if pointer is None:
            pointer = _first_pointer(store, current, context.model)
            await PointerRepository(connection).create(pointer)
    _require_agreement(store, current, pointer)
    committed = VersionRef(pointer.version, pointer.fencing)
    if committed != current:
        await context.run(partial(store.set_current, committed))
    return pointer


async def require_own(connection: Connection, store: Store, request_keys: RequestKeys) -> None:
    """Raise StateMismatch if the database does not belong to this store; call before a schema change.

    Skips the check while an unlearner holds the lease: it has checked already, and its store and database change
    meanwhile.
    """
    model = store.manifest.name
    found = await holder(connection, model)
    if found is None or not found.is_held:
        await check_agreement(connection, store, request_keys, model)


async def check_agreement(connection: Connection, store: Store, request_keys: RequestKeys, model: str) -> None:
    """Check at process start, before any change, that the database belongs to this store.

    Raises StateMismatch if it does not. Nothing is removed then, not even unknown keys. Passes while a committed
    import is unfinished, because the answer is unknown then.
    """
    current = store.current()
    pointer = await _committed(connection, model)
    importing = await ImportRepository(connection).open(model)
    if importing is not None and importing.status is ImportStatus.COMMITTED:
        # The committed model's folder may not be in place yet.
        return
    if pointer is not None:
        _require_agreement(store, current, pointer)
    else:
        _require_untouched(store, await asyncio.to_thread(request_keys.count), model)


def _require_untouched(store: Store, kept_keys: int, model: str) -> None:
    """Raise StateMismatch if a database that has never served the model cannot belong here.

    `kept_keys` is the number of requests that have a key in the key folder.
    """
    _first_pointer(store, store.current(), model)
    if kept_keys:
        raise StateMismatch(
            f"The key folder holds the keys of {kept_keys} deletion requests, but the database has never served "
            f"the model {model!r}: another database accepted them.",
            f"Point DATABASE_URL at the database that belongs to this LETHE_HOME, or restore it. "
            f"{StateMismatch.RECOVER}",
        )


def require_edges(store: Store, ref: VersionRef, found: int) -> None:
    """Raise StateMismatch if the edges in `base/` differ in number from those of the committed version."""
    edges = store.live_edges(ref)
    if edges != found:
        raise StateMismatch(
            f"The store holds {found} edges between live nodes, and its version {ref.folder} was made with {edges}: "
            "its folder `base` was restored from another backup.",
            f"Nothing was removed. Restore the whole store from one backup. {StateMismatch.RECOVER}",
        )


def deleted_edges(batch: Iterable[QueuedRequest], request_keys: RequestKeys) -> list[tuple[str, str]]:
    """Return the edges, by external ids, that a committed batch deleted and that may still be on disk.

    A version records its deleted nodes and features, but not its edges. Only the requests identify these. They keep
    their encrypted targets until the erasure ends.

    Raises KeyMissing if a request cannot be decrypted, because the graph of the committed version is unknown then.
    """
    edges: list[tuple[str, str]] = []
    for request in batch:
        if request.kind.rules.removes is not Part.EDGES:
            continue
        targets = decrypt_targets(request, request_keys)
        if targets is None:
            raise KeyMissing(
                f"Request {request.id} deleted edges that are not erased yet and cannot be identified: the "
                "key of its encrypted targets is missing or does not fit.",
                "Restore the folder `requests` of the key folder; until then these edges would come back.",
            )
        edges.extend(targets.edges)
    return edges


def rows_of_edges(edges: Sequence[tuple[str, str]], node_ids: NodeIds) -> NDArray[np.int64]:
    """Return the endpoint rows of `edges`, (k, 2), without edges that lost an endpoint."""
    pairs = node_ids.rows_of(chain.from_iterable(edges)).reshape(-1, 2)
    return pairs[(pairs >= 0).all(axis=1)]


async def _committed(connection: Connection, model: str) -> Pointer | None:
    """Read the committed version, after checking that the database belongs to this model and no recovery is open."""
    if await RecoveryRepository(connection).is_open(model):
        raise StateMismatch(
            "A recovery of this store was interrupted: deleted data may still be in it.",
            "Run `./lethe recover` again; it continues where needed.",
        )
    await PointerRepository(connection).require_only(model)
    return await PointerRepository(connection).read(model)


def _require_agreement(store: Store, current: VersionRef, pointer: Pointer) -> None:
    committed = VersionRef(pointer.version, pointer.fencing)
    if committed != current:
        _require_interrupted(store, current, committed)
    if store.version_digest(committed) != pointer.digest:
        raise StateMismatch(
            f"Version {committed.folder} in the store is not the one that the database committed (its digest differs).",
            f"Nothing was removed. Restore store and database from the same backup. {StateMismatch.RECOVER}",
        )


def _first_pointer(store: Store, current: VersionRef, model: str) -> Pointer:
    if current.version != 0:
        raise StateMismatch(
            f"The store holds version {current.folder} of model {model!r}, but the database does not know it, so "
            "it would not know which nodes were deleted.",
            f"Point DATABASE_URL at the database that belongs to this store, or restore it from its backup. "
            f"{StateMismatch.RECOVER}",
        )
    return pointer_to(store, current, model)


def _require_interrupted(store: Store, current: VersionRef, committed: VersionRef) -> None:
    """Raise StateMismatch unless the store holds a later version that CURRENT does not name yet."""
    # The gap may exceed one: with noise, attempts that failed before the commit use up numbers.
    if committed.version > current.version and committed in store.versions():
        return
    raise StateMismatch(
        f"The database has committed version {committed.folder}, the store is at {current.folder}: one of them was "
        "restored from an older backup.",
        f"Nothing was removed. Restore store and database from the same backup. {StateMismatch.RECOVER}",
    )


async def require_unpromised(connection: Connection, store: Store) -> None:
    """Raise ConfigurationError if the store's version or the database's newest was published with noise.

    Checks both, because an older backup of one may not know of it.
    """
    name, current = store.manifest.name, store.current()
    promises: dict[int, tuple[float | None, float | None, int | None]] = {}
    publication = store.read_version(current).publication
    if publication is not None:
        promise = publication.promise
        promises[current.version] = (promise.epsilon, promise.delta, promise.publications)
    for newest in await VersionRepository(connection).latest(name, limit=1):
        if newest.publication_mu is not None:
            promises[newest.number] = (
                newest.publication_epsilon, newest.publication_delta, newest.publications_planned,
            )  # fmt: skip
    if not promises:
        return
    version = max(promises)
    epsilon, delta, planned = promises[version]
    raise ConfigurationError(
        f"Version {version} of model {name!r} was published with noise (epsilon {epsilon}, delta {delta}, "
        f"{planned} versions planned), and this recovery would publish the weights as they are.",
        f"Nothing was changed. Give --certify {epsilon},{delta} --certify-publications {planned}, and "
        "--repair-tolerance if `serve` has it; or set LETHE_CERTIFY, LETHE_CERTIFY_PUBLICATIONS and "
        "LETHE_REPAIR_TOLERANCE as for `serve`.",
    )


async def steps_of_cause(context: Context, writer: VersionWriter, store: Store, version: Version) -> CauseSteps:
    """Return the steps that the cause of `version` adds; `store` is the model at its served path.

    Raises Unavailable. Raises ValueError for a recovery, which only the next recovery can continue.
    """
    match version.cause:
        case Cause.BATCH:
            async with transaction(context.engine) as connection:
                return BatchSteps(context, writer, await BatchRepository(connection).get(version.id))
        case Cause.IMPORT:
            return ImportSteps(context, Replacement(store.path, str(version.id)), store, store.manifest)
        case Cause.REPAIR:
            return RepairSteps(context, writer)
        case Cause.CERTIFICATION:
            return CertificationSteps(context, writer)
        case Cause.RECOVERY:
            raise ValueError("only the next recovery can continue an interrupted one")
