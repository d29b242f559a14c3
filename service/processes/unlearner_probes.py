"""Checks that only the unlearner can make; API processes read them in the lease's row."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import torch

from service.domain.lease_report import Check
from service.errors import DatabaseDamaged, Unavailable
from service.ledger.erasure_ledger import ErasureLedger
from service.ledger.places import WRITE_REMEDY
from service.processes.readiness import NotReady, Probes, Readiness
from service.requests.delivery import ClaimWatch
from service.unlearner.workers import Team

#: Seconds for which the queue may be unusable: restarts and failovers of Redis are shorter.
MOST_STALL_S = 60.0
#: Seconds between two checks.
_LOOK_S = 2.0


def unlearner_probes(
    *,
    queue: ClaimWatch,
    key_files: Callable[[], None],
    device: torch.device,
    team: Team,
    restarts: int,
    ledger: ErasureLedger | None = None,
) -> Probes:
    """Return the unlearner's checks. `key_files` raises LetheError if a file of its keys is missing.

    `restarts` is the number of times that the supervisor restarted the unlearner. `ledger` is the erasure ledger.
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
        # Fewer workers do the same work, later.
        return f"{team.count} of {team.wanted} compute together"

    async def starts() -> str:
        # The check `unlearner` decides whether these are too many.
        return f"restarted {restarts} times by its supervisor" if restarts else "not restarted"

    async def ledger_is_written() -> str:
        assert ledger is not None
        if ledger.failure is not None:
            raise NotReady(f"{ledger.failure} This has lasted {ledger.failing_s:.0f} s.", WRITE_REMEDY)
        return ledger.name

    probes = [
        ("queue", queue_is_usable),
        ("unlearner_keys", keys),
        ("device", device_computes),
        ("restarts", starts),
    ]
    if ledger is not None:
        probes.append(("ledger", ledger_is_written))
    return probes if team.wanted == 1 else [*probes, ("workers", workers)]


async def keep_looking(readiness: Readiness, report: Callable[[tuple[Check, ...]], None], stop: asyncio.Event) -> None:
    """Repeat the checks and `report` the results until `stop`."""
    while not stop.is_set():
        report(await readiness())
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _LOOK_S)
