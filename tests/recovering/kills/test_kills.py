"""Processes killed, or stopped for a while, at every failure point, alone and in pairs: each deletion happens once.

The processes are those of one Lethe, with one to four that answer, and those of Postgres and Valkey. Every point occurs
once for each cause: batches and repairs here, imports and recoveries in the files beside this one. LETHE_TEST_SEED
draws what is killed or stopped. The sweeps are `./lethe test --slow tests/recovering/kills`; the same command
resumes an interrupted one.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from service.domain.states import Cause
from service.failure_points import FailurePoint
from tests.support.kills.deletions import Runs
from tests.support.kills.faults import (
    FILE_CHANGE,
    INTERRUPTIONS,
    KEY_POINTS,
    SEED,
    STEP_POINTS,
    WEBHOOK_POINTS,
    Action,
    Fault,
    points_of,
)
from tests.support.kills.scenarios import POINTS, scenario, titled

_PAIRS = 21
_FILE_CHANGES = 10


def alone() -> list[Sequence[Fault]]:
    """Return a drawn fault for every point."""
    rng = random.Random(SEED)
    return [scenario(replace(fault, action=rng.choice(INTERRUPTIONS))) for fault in POINTS]


def pair(seed: int) -> Sequence[Fault]:
    """Return two faults at random points."""
    rng = random.Random(seed)
    chosen = rng.choices(POINTS, k=2)
    return scenario(
        *(
            replace(fault, action=rng.choice(INTERRUPTIONS), occurrence=_occurrence(rng, fault.point))
            for fault in chosen
        )
    )


def _occurrence(rng: random.Random, point: str) -> int:
    """Starts and repairs are rare."""
    return rng.choice((1, 1, 2)) if point in STEP_POINTS else 1


def amid_files(seed: int) -> Sequence[Fault]:
    """Return a kill at some change of a model file, and another during the next start's work there."""
    rng = random.Random(seed)
    kills = (Action.KILL_IT, Action.KILL_SUPERVISOR)
    return [Fault(rng.choice(kills), FILE_CHANGE, rng.randrange(1, 60)) for _ in range(2)]


#: Each covers something that the drawn ones may miss.
CHOSEN: list[Sequence[Fault]] = [
    [Fault(Action.KILL_POSTGRES, FailurePoint.COMMITTING)],
    [Fault(Action.KILL_SUPERVISOR, FailurePoint.COMMITTED), Fault(Action.KILL_POSTGRES, FailurePoint.LOADED)],
    [Fault(Action.KILL_API, FailurePoint.ACCEPTED), Fault(Action.PAUSE_API, FailurePoint.SWAPPED)],
    [Fault(Action.PAUSE_UNLEARNER, FailurePoint.WRITTEN), Fault(Action.PAUSE_SUPERVISOR, FailurePoint.CLAIMED)],
    [Fault(Action.KILL_IT, FILE_CHANGE, 7), Fault(Action.KILL_VALKEY, FailurePoint.CLAIMED)],
]


def check(runs: Runs, faults: Sequence[Fault], seed: int = 0) -> None:
    """Check the faults under the repair policy that they need, or one of the three, with one to four answering
    processes.
    """
    policies: dict[str, dict[str, Any]] = {
        "never": {},
        "always": {},
        "deferred": {"repair": "always", "repair_budget": 0.0},
    }
    rng = random.Random(f"{seed} {faults}")
    repairs = any(fault.cause is Cause.REPAIR for fault in faults)
    policy = "deferred" if repairs else rng.choice(list(policies))
    runs.check(faults, seed=seed, api_workers=rng.randint(1, 4), **({"repair": policy} | policies[policy]))


@pytest.mark.slow
@pytest.mark.parametrize("faults", titled(CHOSEN))
def test_each_deletion_happens_once_whatever_is_killed(runs: Runs, faults: Sequence[Fault]) -> None:
    runs.check(faults, api_workers=2)


@pytest.mark.slow
def test_each_deletion_is_repaired_once_whatever_is_killed(runs: Runs) -> None:
    fault = Fault(Action.KILL_IT, FailurePoint.COMMITTED, cause=Cause.REPAIR)
    runs.check([fault], repair="always", repair_budget=0.0)


def test_the_sweeps_leave_no_failure_point_out() -> None:
    swept = {fault.point for fault in POINTS} | {point for cause in Cause for point in points_of(cause)}
    assert swept | set(KEY_POINTS) | set(WEBHOOK_POINTS) == set(FailurePoint)


@pytest.mark.slow
@pytest.mark.parametrize("faults", titled(alone()))
def test_a_kill_at_each_failure_point(runs: Runs, faults: Sequence[Fault]) -> None:
    check(runs, faults)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(_PAIRS))
def test_two_kills_at_random_failure_points(runs: Runs, seed: int) -> None:
    check(runs, pair(SEED + seed), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(_FILE_CHANGES))
def test_a_kill_at_a_change_of_a_file(runs: Runs, seed: int) -> None:
    check(runs, amid_files(SEED + seed), seed)
