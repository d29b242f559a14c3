"""Any process exposes its siblings' metrics to Prometheus as well, each under its own name."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from service.observability.exposition import Exposition
from tests.support.preloaded import ROOT

_SIBLING = """
import asyncio, sys
from pathlib import Path
from prometheus_client import CollectorRegistry, Counter
from service.observability.exposition import Exposition

async def run():
    registry = CollectorRegistry()
    Counter("answers", "Answers.", ("route",), registry=registry).labels("/model").inc(int(sys.argv[3]))
    async with Exposition(registry, sys.argv[2], Path(sys.argv[1])).shared():
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(run())
"""


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    # Longer than a socket's address may be.
    return tmp_path / ("x" * 120) / "metrics"


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as entered:
        yield entered


async def shown(exposition: Exposition) -> dict[tuple[str, str], float]:
    """Return (sample with labels, process) -> value."""
    text = (await exposition()).decode()
    found = {}
    names = []
    for family in text_string_to_metric_families(text):
        names.append(family.name)
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "process"}
            key = sample.name + "".join(f" {name}={value}" for name, value in sorted(labels.items()))
            assert (key, sample.labels["process"]) not in found
            found[key, sample.labels["process"]] = sample.value
    assert len(names) == len(set(names)), "a family is described once"
    return found


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def counting(answers: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("answers", "Answers.", ("route",), registry=registry).labels("/model").inc(answers)
    return registry


async def test_each_shows_all_under_their_names(folder: Path, stack: AsyncExitStack) -> None:
    registries = [counting(3), counting(4), counting(0)]
    Gauge("only_here", "A gauge with\nlines.", registry=registries[1]).set(float("nan"))
    Histogram("seconds", "Durations.", registry=registries[2], buckets=(1.0,)).observe(0.5)
    siblings = [Exposition(registry, f"api-{number}", folder) for number, registry in enumerate(registries)]
    for sibling in siblings:
        await stack.enter_async_context(sibling.shared())
    assert mode_of(folder) == 0o700
    pages = [await shown(sibling) for sibling in siblings]
    assert all(page.keys() == pages[0].keys() for page in pages)
    assert [pages[0]["answers_total route=/model", f"api-{number}"] for number in range(3)] == [3.0, 4.0, 0.0]
    assert pages[0]["seconds_bucket le=1.0", "api-2"] == 1.0
    assert ("only_here", "api-1") in pages[2]
    Counter("late", "Counted later.", registry=registries[0]).inc()
    assert (await shown(siblings[2]))["late_total", "api-0"] == 1.0


async def test_one_alone_shows_its_own_metrics(folder: Path) -> None:
    alone = Exposition(counting(3), "api-0", folder)
    async with alone.shared():
        assert (await shown(alone))["answers_total route=/model", "api-0"] == 3.0


async def test_one_that_ended_is_not_shown_and_leaves_nothing(folder: Path, stack: AsyncExitStack) -> None:
    first = Exposition(counting(3), "api-0", folder)
    await stack.enter_async_context(first.shared())
    async with Exposition(counting(4), "api-1", folder).shared():
        assert {process for _, process in await shown(first)} == {"api-0", "api-1"}
    assert {process for _, process in await shown(first)} == {"api-0"}
    assert names_in(folder) == ["api-0.sock"]


async def test_one_that_was_killed_or_stopped_keeps_nobody_from_an_answer(folder: Path, stack: AsyncExitStack) -> None:
    first = Exposition(counting(3), "api-0", folder)
    await stack.enter_async_context(first.shared())
    command = [sys.executable, "-P", "-c", _SIBLING, str(folder), "api-1", "4"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    sibling = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.PIPE)
    try:
        assert sibling.stdout is not None
        assert await sibling.stdout.readline() == b"ready\n"
        assert (await shown(first))["answers_total route=/model", "api-1"] == 4.0
        sibling.send_signal(signal.SIGSTOP)
        assert {process for _, process in await shown(first)} == {"api-0"}
        sibling.send_signal(signal.SIGCONT)
        assert {process for _, process in await shown(first)} == {"api-0", "api-1"}
    finally:
        sibling.kill()
        await sibling.wait()
    assert {process for _, process in await shown(first)} == {"api-0"}
    assert (folder / "api-1.sock").exists(), "whoever takes its name removes what it left"
    async with Exposition(counting(5), "api-1", folder).shared():
        assert (await shown(first))["answers_total route=/model", "api-1"] == 5.0
