"""The health of unlearners, which each reports on its own machine, also while another holds the lease."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from service.domain.lease_report import Check, Condition, Phase
from service.observability.sockets import answering, connected


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
