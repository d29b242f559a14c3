"""All workers compute on a newly imported model, as on the one before."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from service.domain.states import ImportStatus
from service.settings import Settings
from tests.support.preloaded import Start
from tests.support.processes.lethe_process import LetheProcess
from tests.support.processes.workers import free_port
from tests.support.service.db_harness import until
from tests.support.service.imports import asked, ended
from tests.support.service.running import running


@pytest.mark.slow
async def test_an_imported_model_is_shared_by_all_workers(
    settings: Settings, new_model: Path, tmp_path: Path, lethe_start: Start
) -> None:
    meeting: dict[str, Any] = {"workers_port": free_port(), "lease_ttl_s": 5.0}
    settings = settings.model_copy(update={"workers": 2, **meeting})
    worker = LetheProcess(lethe_start, tmp_path / "elsewhere", role="worker", model=settings.model_dir, **meeting)
    async with running(settings) as lethe:

        async def together() -> bool:
            return 'lethe_workers{process="unlearner"} 2.0' in await lethe.metrics()

        await asyncio.to_thread(worker.start)
        try:
            await until(together)
            record = await ended(settings, await asked(settings, new_model))
            assert record.status is ImportStatus.COMPLETED
            await until(together)
            state = await lethe.completed(await lethe.delete("9"))
            assert record.version is not None
            assert state["audit"]["model_version_before"] == record.version.number
            assert lethe.failures == []
        finally:
            await asyncio.to_thread(worker.close)
    assert worker.log().count("] worker.following ") >= 2
