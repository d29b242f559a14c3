"""Which ends of a session the unlearner has counted, after it regains the lease."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from model_store.work import Work
from service.db import lease as leases
from service.domain.lease_report import Phase
from service.domain.records import Lease
from service.errors import Unavailable
from service.queue.outage import Backoff, Outage
from service.unlearner import loop as module
from service.unlearner.batcher import BatchLimits
from service.unlearner.loop import Unlearner


@pytest.mark.parametrize(
    ("error", "is_counted"),
    [
        (Unavailable("Redis does not answer.", "Start it."), False),
        (OSError(28, "No space left on device"), False),
        (RuntimeError("It was not foreseen."), True),
    ],
)
async def test_an_outage_that_ends_a_session_is_no_failure_and_what_was_not_foreseen_is_one(
    error: Exception, is_counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = asyncio.Event()
    outage = Outage("unlearner", Backoff(base_s=0.001, cap_s=0.001))

    async def run(work: Callable[[], object]) -> object:
        return work()

    publisher = SimpleNamespace(highest_fencing=lambda: 7)
    context: Any = SimpleNamespace(
        engine=None, model="small", outage=outage, stop=stop, work=Work(), publisher=publisher, run=run
    )
    anything: Any = SimpleNamespace(manifest=None)
    unlearner = Unlearner(
        context, anything, anything, anything, limits=BatchLimits(1, 0.0), lease_ttl_s=60.0, home="a" * 32
    )
    flags: list[bool] = []

    async def acquire(*_: object, above: int, after_failure: bool, home: str, take_over: bool) -> Lease | None:
        assert (above, home, take_over) == (7, "a" * 32, False)
        flags.append(after_failure)
        if len(flags) == 1:
            raise error
        assert unlearner.condition.phase is Phase.WAITING_FOR_LEASE
        stop.set()
        return None

    monkeypatch.setattr(leases, "acquire", acquire)
    monkeypatch.setattr(module, "_POLL_S", 3600.0)
    await unlearner.run()
    assert flags == [False, is_counted]
