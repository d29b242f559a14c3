"""What the unlearner alone can look at, and whether it is well, which it says to whoever asks on its machine."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from service.domain.lease_report import Check, Condition, Phase
from service.errors import DatabaseDamaged, Unavailable
from service.observability.exposition import answering, connected
from service.processes.readiness import NotReady, Probes, Readiness
from service.requests.delivery import ClaimWatch
from service.unlearner.workers import Team

#: Seconds for which the queue may be unusable: restarts and failovers of Redis are shorter.
MOST_STALL_S = 60.0
#: Seconds between two looks.
_LOOK_S = 2.0


def unlearner_probes(
    *, queue: ClaimWatch, key_files: Callable[[], None], device: torch.device, team: Team, restarts: int
) -> Probes:
    """The checks that the unlearner makes. `key_files` raises LetheError if a file of its keys is missing.

    `restarts` is the number of times that the supervisor restarted the unlearner.
    """

    async def queue_is_usable() -> str:
        try:
            stall = await queue.stall()
        except DatabaseDamaged:
            raise
        except Unavailable as error:
            raise NotReady(error.detail, error.remedy) from None
        if stall is None:
            return "usable"
        waits = f"The oldest request waits for {stall.oldest_s:.0f} s." if stall.oldest_s else "No request waits."
        text = f"No request could be processed for {stall.lasts_s:.0f} s. {waits} {stall.reason}"
        if stall.lasts_s > MOST_STALL_S:
            raise NotReady(text, stall.remedy)
        return text

    async def keys() -> str:
        await asyncio.to_thread(key_files)
        return "complete"

    async def device_computes() -> str:
        await asyncio.to_thread(lambda: torch.ones(1, device=device).sum().item())
        return str(device)

    async def workers() -> str:
        # Fewer than were asked for do the same, later.
        return f"{team.count} of {team.wanted} compute together"

    async def starts() -> str:
        # The check `unlearner` decides whether these are too many.
        return f"restarted {restarts} times by its supervisor" if restarts else "not restarted"

    probes = [
        ("queue", queue_is_usable),
        ("unlearner_keys", keys),
        ("device", device_computes),
        ("restarts", starts),
    ]
    return probes if team.wanted == 1 else [*probes, ("workers", workers)]


async def keep_looking(readiness: Readiness, report: Callable[[tuple[Check, ...]], None], stop: asyncio.Event) -> None:
    """Look again and again, and `report` what was found, until `stop`."""
    while not stop.is_set():
        report(await readiness())
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _LOOK_S)


@dataclass(frozen=True)
class Health:
    """An unlearner's report of its own health."""

    condition: Condition
    checks: tuple[Check, ...]

    @property
    def goes_on(self) -> bool:
        """Whether it unlearns, or will: one that waits for the lease or loads goes on."""
        return self.condition.phase not in (Phase.FAILED, Phase.HELD_UP)


@dataclass(frozen=True)
class RunningUnlearner:
    """An unlearner that runs on this machine or in this container."""

    name: str
    pid: int
    #: None: it did not answer in time.
    health: Health | None


def shared_health(home: Path, name: str, look: Callable[[], Awaitable[Health]]) -> AbstractAsyncContextManager[None]:
    """Answer `running_unlearners`, inside the block, with what `look` returns."""

    async def answer() -> bytes:
        return msgspec.json.encode(await look())

    return answering(_folder(home) / f"{name}.sock", answer)


async def running_unlearners(home: Path, timeout_s: float) -> list[RunningUnlearner]:
    """The unlearners of a home, as far as they run where this process does: other containers have their own.

    Each gets `timeout_s` seconds to answer.
    """
    found = await asyncio.gather(*(_ask(path, timeout_s) for path in sorted(_folder(home).glob("*.sock"))))
    return [one for one in found if one is not None]


async def _ask(path: Path, timeout_s: float) -> RunningUnlearner | None:
    pid, health = 0, None
    # A socket that nobody answers was left by a process that is dead.
    with suppress(OSError, TimeoutError, msgspec.DecodeError):
        async with asyncio.timeout(timeout_s), connected(path) as (answer, pid):
            health = msgspec.json.decode(await answer.read(), type=Health)
    return RunningUnlearner(path.stem, pid, health) if pid else None


def _folder(home: Path) -> Path:
    return home / "run" / "unlearners"
