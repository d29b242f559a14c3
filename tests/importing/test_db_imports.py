"""The record of imports: one open at a time, and final once it has ended."""

from dataclasses import replace
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from service.db.engine import create_engine
from service.db.transactions import transaction
from service.domain.states import EventType, ImportStatus
from service.errors import Conflict
from service.log.canonical import parse_canonical
from service.log.events import EventRepository, LogRepository
from service.log.leaves import ModelImported, ServedFigures
from service.predictions.version_rows import PointerRepository, VersionRepository
from service.unlearner.causes import ImportRepository
from tests.support.service.imports import IMPORTED


async def test_an_import_is_open_until_it_ends_and_never_changes_afterwards(database_url: str) -> None:
    engine = create_engine(database_url)
    refused, taken = uuid4(), uuid4()
    version = replace(IMPORTED, id=taken, model="m")
    async with transaction(engine) as connection:
        imports = ImportRepository(connection)
        await PointerRepository(connection).create(version.pointer)
        await imports.ask(refused, "m", exclude_deleted=False)
        with pytest.raises(Conflict, match="is still running"):
            await imports.ask(taken, "m", exclude_deleted=True)
        await imports.ask(uuid4(), "another", exclude_deleted=False)
        await imports.refuse(refused, "It has deleted nodes.")
        await imports.ask(taken, "m", exclude_deleted=True)
        with pytest.raises(Conflict, match="cannot become completed"):
            await imports.complete(taken)
        await VersionRepository(connection).insert(version)
        await imports.commit(taken)
        await imports.commit(taken)
        await EventRepository(connection).append_unrequested(EventType.IMPORTED, ModelImported(version))
        [leaf] = [parse_canonical(leaf.data) for leaf in await LogRepository(connection).unrequested()]
        assert (leaf["type"], leaf["request_id"], leaf["request"], leaf["subjects"]) == ("imported", None, None, None)
        expected = {"model": "m", "import": str(taken), "model_version_before": 4, "model_version_after": 5}
        assert leaf["details"].items() >= expected.items()
        assert (leaf["details"]["excluded_nodes"], leaf["details"]["weights_sha256_after"]) == (2, "1" * 64)
        assert (leaf["details"]["rank_after"], leaf["details"]["live_nodes"]) == (12, 58)
        assert await EventRepository(connection).latest_figures("m") == ServedFigures.read(leaf["details"])
        assert await EventRepository(connection).latest_figures("another") is None
        found = await imports.open("m")
        assert found is not None
        assert (found.id, found.status, found.version) == (taken, ImportStatus.COMMITTED, version)
        await imports.complete(taken)
        await imports.complete(taken)
        assert await imports.open("m") is None
        ended = await imports.get(taken)
        assert ended is not None
        assert (ended.id, ended.status, ended.version) == (taken, ImportStatus.COMPLETED, version)
        ended = await imports.get(refused)
        assert ended is not None
        assert (ended.status, ended.refusal) == (ImportStatus.REFUSED, "It has deleted nodes.")
    for change in ("UPDATE imports SET exclude_deleted = false", "DELETE FROM imports"):
        with pytest.raises(IntegrityError, match="never changed"):
            async with transaction(engine) as connection:
                await connection.execute(text(f"{change} WHERE model = 'm'"))
    await engine.dispose()
