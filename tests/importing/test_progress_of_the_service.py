"""Progress of a start or an import is reported to those who wait; that of a deletion only goes to the log."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from structlog.testing import capture_logs

from model_store import work as work_of_model_store
from model_store.store import Store
from model_store.work import Work
from service.cli.models import _ended
from service.settings import Settings
from service.unlearner import loop as unlearners
from tests.support.service.db_harness import until
from tests.support.service.imports import asked, ended
from tests.support.service.running import Lethe, running

pytestmark = pytest.mark.ci


@pytest.fixture(autouse=True)
def said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_of_model_store, "_SILENT_S", 0.0)
    monkeypatch.setattr(unlearners, "_PROGRESS_S", 0.01)


@contextmanager
def held_up(monkeypatch: pytest.MonkeyPatch, method: str) -> Iterator[Event]:
    """In the block, or until the yielded event, make the store's `method` wait after its work."""
    released, original = Event(), getattr(Store, method)

    def wait(*arguments: Any, **named: Any) -> Any:
        done = original(*arguments, **named)
        assert released.wait(20)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(Store, method, wait)
        try:
            yield released
        finally:
            released.set()


async def unlearner_says(lethe: Lethe) -> str:
    checks = (await lethe.client.get("/readyz")).json()["checks"]
    [detail] = [check["detail"] for check in checks if check["name"] == "unlearner"]
    return str(detail)


def says(lethe: Lethe, beginning: str) -> Callable[[], Any]:
    async def said() -> bool:
        return (await unlearner_says(lethe)).startswith(beginning)

    return said


async def test_a_start_and_an_import_say_how_far_they_have_come_and_a_deletion_does_not(
    settings: Settings, new_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_up(monkeypatch, "load_base") as released:
        async with running(settings) as lethe:
            reading = "Reading 0 MiB of the model, every digest checked: 99 % done, a few seconds left"
            await until(says(lethe, f"The unlearner is loading the model. {reading}"))
            released.set()
            await until(lethe.is_ready)
            await until(says(lethe, "serving"))
            assert not await says(lethe, "serving.")()

            import_id = await asked(settings, new_model)
            with held_up(monkeypatch, "load_base"):
                await until(says(lethe, f"serving. {reading}"))
                # The display of `model import` while it waits; it finds no `serve`, so it ends immediately.
                work = Work()
                work.begin("The service loads and repairs the model")
                assert await _ended(settings, import_id, work) is None
                assert work.status == reading
            assert (await ended(settings, import_id)).version is not None
            await until(says(lethe, "serving"))
            await assert_how_far_a_deletion_has_come_is_in_the_log_and_in_no_answer(lethe, monkeypatch)


async def assert_how_far_a_deletion_has_come_is_in_the_log_and_in_no_answer(
    lethe: Lethe, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_logs() as lines, held_up(monkeypatch, "erase") as released:
        accepted = await lethe.delete("7")

        async def is_logged() -> bool:
            return any(line.get("step", "").startswith("Erasing what was deleted, for") for line in lines)

        await until(is_logged)
        for _ in range(3):
            assert await unlearner_says(lethe) == "serving"
            await asyncio.sleep(0)
        released.set()
        await lethe.completed(accepted)
