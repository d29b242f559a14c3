"""Asking for an import: a checked copy of the model beside the served one, and a line in the database."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid4

from model_store.replacement import Replacement, copying_lock
from model_store.store import Store
from model_store.work import Work
from service.db.engine import Engine
from service.db.transactions import CommitUnanswered, transaction
from service.imports.deleted_parts import find_deleted_parts
from service.imports.importer import refuse_deleted
from service.imports.repository import ImportRepository
from service.vault.keyring import Keyring


async def request_import(
    engine: Engine,
    keyring: Keyring,
    served: Path,
    *,
    exclude_deleted: bool,
    provide: Callable[[Path], Store],
    work: Work | None = None,
) -> UUID:
    """Ask whoever holds the lease to replace the model in `served`; returns the import's id.

    `provide` writes the new model to the folder it is given. What will be refused anyway is refused here already, so
    that the operator hears of it at once; the holder of the lease checks again. All of it is steps of `work`.

    Raises:
        ImportRefused: the model contains what was deleted.
        ImportUnderWay, Conflict: another import has not ended.
        ProjectorError: the model cannot be read, or not be made.
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
                await ImportRepository(connection).ask(import_id, model, exclude_deleted=exclude_deleted)
        except CommitUnanswered:
            # It may have been asked for; if not, the next session of the unlearner removes the copy.
            raise
        except BaseException:
            await asyncio.to_thread(replacement.discard)
            raise
    return import_id
