"""The health of unlearners, reported on their own machines even while another holds the lease."""

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
        """Whether it unlearns or will, which includes waiting for the lease and loading."""
        return self.condition.phase not in (Phase.FAILED, Phase.HELD_UP)


@dataclass(frozen=True)
class RunningUnlearner:
    """A running unlearner on this machine or in this container."""

    name: str
    pid: int
    #: None if it did not answer in time.
    health: Health | None


def shared_health(home: Path, name: str, look: Callable[[], Awaitable[Health]]) -> AbstractAsyncContextManager[None]:
    """Answer `running_unlearners` with the result of `look`, inside the block."""

    async def answer(_: asyncio.StreamReader) -> bytes:
        return msgspec.json.encode(await look())

    return answering(_folder(home) / f"{name}.sock", answer)


async def running_unlearners(home: Path, timeout_s: float) -> list[RunningUnlearner]:
    """Return the unlearners of a home that run on this machine or in this container.

    Each gets `timeout_s` seconds to answer.
    """
    found = await asyncio.gather(*(_ask(path, timeout_s) for path in sorted(_folder(home).glob("*.sock"))))
    return [one for one in found if one is not None]


async def _ask(path: Path, timeout_s: float) -> RunningUnlearner | None:
    pid, health = 0, None
    # A dead process left a socket that does not answer.
    with suppress(OSError, TimeoutError, msgspec.DecodeError):
        async with asyncio.timeout(timeout_s), connected(path) as (answer, pid):
            health = msgspec.json.decode(await answer.read(), type=Health)
    return RunningUnlearner(path.stem, pid, health) if pid else None


def _folder(home: Path) -> Path:
    return home / "run" / "unlearners"
