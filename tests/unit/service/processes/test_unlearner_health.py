"""The report of `doctor --role unlearner` on the unlearners of this machine."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from service.cli import doctor
from service.cli.doctor import unlearners
from service.cli.findings import Finding
from service.domain.lease_report import Check, Condition, Phase
from service.processes.unlearner_health import Health, shared_health
from tests.support.clients.command_line import CommandLine
from tests.support.preloaded import ROOT

DEVICE = Check("device", True, "cpu")

_SERVING = """
import asyncio, sys
from pathlib import Path
from service.domain.lease_report import Condition, Phase
from service.processes.unlearner_health import Health, shared_health

async def look():
    return Health(Condition(Phase.SERVING), ())

async def run():
    async with shared_health(Path(sys.argv[1]), "unlearner", look):
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(run())
"""


@asynccontextmanager
async def says(home: Path, phase: Phase, reason: str | None = None, check: Check = DEVICE) -> AsyncIterator[None]:
    """Simulate an unlearner in this process with this report."""

    async def look() -> Health:
        return Health(Condition(phase, reason), (check,))

    async with shared_health(home, "unlearner", look):
        yield


@asynccontextmanager
async def serving(home: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Yield an unlearner serving in its own process, killed at the end."""
    command = [sys.executable, "-P", "-c", _SERVING, str(home)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        await process.wait()


def wrong(found: list[Finding]) -> list[str]:
    assert all(one.remedy for one in found if not one.ok)
    return [f"{one.name}: {one.found}" for one in found if not one.ok]


@pytest.mark.parametrize("phase", [Phase.SERVING, Phase.WAITING_FOR_LEASE, Phase.LOADING])
async def test_one_that_serves_or_stands_by_or_loads_is_well(tmp_path: Path, phase: Phase) -> None:
    async with says(tmp_path, phase, "42 % done"):
        assert list(await unlearners(tmp_path, 2.0)) == [
            Finding("unlearner", True, f"Process {os.getpid()} is {phase.value}. 42 % done"),
            Finding("unlearner: device", True, "cpu"),
        ]


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.HELD_UP])
async def test_one_that_does_not_go_on_is_not_well(tmp_path: Path, phase: Phase) -> None:
    async with says(tmp_path, phase, "The disk is full."):
        found = wrong(list(await unlearners(tmp_path, 2.0)))
        assert found == [f"unlearner: Process {os.getpid()} is {phase.value}. The disk is full."]


async def test_one_that_lacks_what_it_needs_is_not_well(tmp_path: Path) -> None:
    check = Check("device", False, "It failed with RuntimeError.", "Check the log of the service.")
    async with says(tmp_path, Phase.SERVING, check=check):
        assert wrong(list(await unlearners(tmp_path, 2.0))) == ["unlearner: device: It failed with RuntimeError."]


async def test_one_that_hangs_is_named_and_one_that_was_killed_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as process:
        assert wrong(list(await unlearners(tmp_path, 2.0))) == []
        process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(doctor, "_MARGIN_S", 0.1)
        # Its own checks may take LETHE_READINESS_TIMEOUT_S.
        hangs = f"unlearner: Process {process.pid} does not answer within 0.3 s."
        assert wrong(list(await unlearners(tmp_path, 0.2))) == [hangs]
    assert wrong(list(await unlearners(tmp_path, 2.0))) == [f"unlearner: No unlearner runs here in {tmp_path}."]


async def test_the_command_ends_as_a_health_check_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lethe = CommandLine(capsys)

    def doctor() -> int:
        return lethe("doctor", "--role", "unlearner", "--home", tmp_path).status

    async with serving(tmp_path):
        assert await asyncio.to_thread(doctor) == 0
    assert await asyncio.to_thread(doctor) == 1
