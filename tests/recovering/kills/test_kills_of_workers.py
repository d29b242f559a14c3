"""A worker that computes with the unlearner is killed or stopped at every failure point: each deletion happens once.

LETHE_TEST_SEED draws the repair policy.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from service.domain.states import Cause
from service.failure_points import FailurePoint
from tests.support.kills.deletions import Run, Runs
from tests.support.kills.faults import SEED, START_POINTS, Action, Fault
from tests.support.kills.scenarios import POINTS, scenario, titled

#: Shorter than a pause, and long enough for a busy machine.
_LEASE_S = 2.0


def drawn_for(faults: Sequence[Fault]) -> str:
    """Return the repair policy that faults need, or a drawn one."""
    if any(fault.cause is Cause.REPAIR for fault in faults):
        return "deferred"
    return random.Random(f"{SEED} {faults}").choice(("never", "always", "deferred"))


def check(runs: Runs, faults: Sequence[Fault], policy: str) -> None:
    """Check the faults in a run of two workers."""
    budget = 0.0 if policy == "deferred" else 60.0
    repair = "never" if policy == "never" else "always"

    @contextmanager
    def seen(run: Run) -> Iterator[None]:
        yield
        log = run.lethe.log()
        assert "] worker.following " in log
        # A worker lost before it takes part goes unnoticed.
        assert "workers.lost" in log or faults[-1].point in START_POINTS

    runs.check(faults, repair=repair, repair_budget=budget, workers=2, lease_ttl_s=_LEASE_S, seed=SEED, around=seen)


def _after_a_start(action: Action) -> list[list[Fault]]:
    return [list(scenario(replace(fault, action=action))) for fault in POINTS]


@pytest.mark.slow
@pytest.mark.parametrize("point", [FailurePoint.BATCHED, FailurePoint.COMMITTED])
@pytest.mark.parametrize("action", [Action.KILL_WORKER, Action.PAUSE_WORKER])
def test_a_batch_is_applied_once_when_a_worker_is_lost_amid_it(runs: Runs, action: Action, point: FailurePoint) -> None:
    cause = Cause.BATCH if point is FailurePoint.COMMITTED else None
    check(runs, [Fault(action, point, cause=cause)], "never")


@pytest.mark.slow
@pytest.mark.parametrize("faults", titled(_after_a_start(Action.KILL_WORKER)))
def test_a_kill_of_a_worker_at_each_failure_point(runs: Runs, faults: list[Fault]) -> None:
    check(runs, faults, drawn_for(faults))


@pytest.mark.slow
@pytest.mark.parametrize("faults", titled(_after_a_start(Action.PAUSE_WORKER)))
def test_a_worker_that_is_stopped_for_a_while_at_each_failure_point(runs: Runs, faults: list[Fault]) -> None:
    check(runs, faults, drawn_for(faults))
