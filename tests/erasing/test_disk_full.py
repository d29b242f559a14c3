"""A full disk when a version is written: nothing is lost, nothing fails, and nothing half-written stays."""

import errno
import os
from pathlib import Path

import pytest

from model_store import versions
from service.settings import Settings
from tests.support.full_disk import refusing_midway
from tests.support.service.db_harness import until
from tests.support.service.running import Lethe, running

pytestmark = pytest.mark.ci


async def test_a_version_that_does_not_fit_on_the_disk_waits_until_it_does(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[Path] = []

    def full(path: Path) -> None:
        refused.append(path)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with running(settings) as lethe:
        await until(lethe.is_ready)
        before = (await lethe.client.get("/predict/8")).json()
        with monkeypatch.context() as patched:
            patched.setattr(versions, "durable_changes", refusing_midway(full))
            accepted = await lethe.delete("7")

            async def is_refused_twice() -> bool:
                return len(refused) > 1

            await until(is_refused_twice)
            assert (await lethe.state(accepted))["status"] == "queued"
            assert (await lethe.client.get("/predict/8")).json() == before
            await until(lambda: names_the_disk(lethe))
        state = await lethe.completed(accepted)
        assert state["audit"]["model_version_after"] == 1
        await until(lethe.is_ready)
        assert not lethe.failures
    assert len(list((settings.model_dir / "versions").iterdir())) == 1


async def names_the_disk(lethe: Lethe) -> bool:
    """Whether readiness names the disk as the reason that nothing is unlearned."""
    checks = (await lethe.client.get("/readyz")).json()["checks"]
    return any("No space left" in one["detail"] for one in checks if not one["ok"])
