"""A service writes the Gram factors of a settled version when idle, starts from them, and ignores damaged ones."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from model_store.gram_checkpoint import FILE
from model_store.store import Store
from service.settings import Settings
from service.unlearner import committed
from service.unlearner.loading import Checkpointer
from tests.support.service.db_harness import until
from tests.support.service.running import Lethe, running


def checkpoints(settings: Settings) -> list[Path]:
    return sorted(settings.model_dir.glob(f"versions/*/{FILE}"))


async def predicted(lethe: Lethe) -> object:
    return (await lethe.client.post("/predict", json={"nodes": ["1", "2", "30"]})).json()


@pytest.mark.slow
async def test_a_start_reads_the_factors_of_the_committed_version_and_does_without_damaged_ones(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = Checkpointer.__init__.__kwdefaults__
    assert defaults is not None
    for name, value in {"least_features": 1, "quiet_s": 0.0}.items():
        monkeypatch.setitem(defaults, name, value)
    async with running(settings) as lethe:

        async def is_kept() -> bool:
            kept = checkpoints(settings)
            current = Store.open(settings.model_dir).current().folder
            return [path.parent.name for path in kept] == [current]

        await until(lethe.is_ready)
        await until(is_kept)
        await lethe.completed(await lethe.delete("7"))
        # Nothing older is on the disk once the request is completed.
        assert all(path.parent.name.startswith("1-") for path in checkpoints(settings))
        await until(is_kept)
        before = await predicted(lethe)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the factors were computed, not read")

    with monkeypatch.context() as patched:
        patched.setattr(committed, "factorise", refuse)
        async with running(settings) as lethe:
            await until(lethe.is_ready)
            assert await predicted(lethe) == before

    [file] = checkpoints(settings)
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with capture_logs() as logs:
        async with running(settings) as lethe:
            await until(lethe.is_ready)
            assert await predicted(lethe) == before

            async def is_mended() -> bool:
                return file.read_bytes() != bytes(content)

            await until(is_mended)
    [ignored] = [line for line in logs if line["event"] == "checkpoint.ignored"]
    assert str(file) in ignored["reason"]
