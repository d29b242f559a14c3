"""An import without room on the disk waits for it, and nothing else does."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from model_store import versions
from service.domain.states import ImportStatus
from service.settings import Settings
from service.unlearner import importer
from service.unlearner.staged import Staged
from tests.support.full_disk import refusing_midway
from tests.support.service.db_harness import until
from tests.support.service.imports import asked, beside, ended
from tests.support.service.running import Lethe, running

pytestmark = pytest.mark.ci


class FullDisk:
    """Has room for versions of the served model, and for half of a staged model's version."""

    def __init__(self, patch: pytest.MonkeyPatch, code: int) -> None:
        self.code: int | None = code
        self.attempts = 0
        self.loads = 0
        load = Staged.load

        def slow(*given: Any) -> Staged:
            # Longer than the time between two looks for imports.
            time.sleep(0.6)
            self.loads += 1
            return load(*given)

        patch.setattr(Staged, "load", slow)
        patch.setattr(versions, "durable_changes", refusing_midway(self._refuse))
        patch.setattr(importer, "_REST_S", 0.1)
        patch.setattr(importer, "_REST_TIMES", 1)

    def _refuse(self, path: Path) -> None:
        if self.code is not None and ".model.import-" in str(path):
            self.attempts += 1
            raise OSError(self.code, os.strerror(self.code))

    async def has_refused(self) -> bool:
        return self.attempts > 0


async def test_deletions_go_on_beside_an_import_that_waits_for_room(
    settings: Settings, new_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = errno.ENOSPC
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        disk = FullDisk(monkeypatch, code)
        import_id = await asked(settings, new_model, exclude_deleted=True)
        await until(disk.has_refused)
        await until(lambda: reports_the_wait(lethe, code))
        state = await lethe.completed(await lethe.delete("7"))
        assert (state["audit"]["model_version_before"], state["audit"]["model_version_after"]) == (0, 1)
        await until(lambda: reports_the_wait(lethe, code))
        [staged] = beside(settings)

        async def holds_what_was_trained_alone() -> bool:
            return [path.name for path in (settings.home / staged / "versions").iterdir()] == ["0-0"]

        # The partial copy no longer takes up space.
        await until(holds_what_was_trained_alone)
        disk.code = None
        record = await ended(settings, import_id)
        assert record.status is ImportStatus.COMPLETED
        assert record.version is not None
        assert (record.version.number_before, record.version.deleted_nodes) == (1, 1)
        await until(lambda: reports_no_wait(lethe, code))
        # Nothing of it stayed in memory meanwhile.
        assert disk.loads == disk.attempts + 1
        assert lethe.failures == []


async def reports_no_wait(lethe: Lethe, code: int) -> bool:
    return not await reports_the_wait(lethe, code)


async def reports_the_wait(lethe: Lethe, code: int) -> bool:
    """Whether readiness, which stays given, says that an import waits and for what."""
    answer = await lethe.client.get("/readyz")
    assert answer.status_code == 200, answer.text
    [unlearner] = [check for check in answer.json()["checks"] if check["name"] == "unlearner"]
    return bool(unlearner["detail"].endswith(f"An import is waiting for disk space: {os.strerror(code)}."))
