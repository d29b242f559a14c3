"""A committed version that was not taken to its end, from its row alone: the steps that belong to its cause."""

from model_store.replacement import Replacement
from model_store.store import Store
from service.batches.repairer import CertificationSteps, RepairSteps
from service.batches.steps import BatchSteps
from service.db.transactions import transaction
from service.domain.states import Cause
from service.domain.versions import Version
from service.imports.importer import ImportSteps
from service.versions.batch_rows import BatchRepository
from service.versions.context import Context
from service.versions.new_version import CauseSteps
from service.versions.writer import VersionWriter


async def steps_of_cause(context: Context, writer: VersionWriter, store: Store, version: Version) -> CauseSteps:
    """What the cause of `version` adds to the steps that are left; `store` is the model, where it is served from.

    Raises Unavailable, and ValueError for a recovery, which the next one alone goes on with.
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
            raise ValueError("an interrupted recovery is gone on with by the next one alone")
