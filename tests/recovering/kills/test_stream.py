"""Redis' content is lost, repeated and reordered: each deletion still happens exactly once."""

import random
from collections.abc import Callable

import pytest
import redis

from service.failure_points import FailurePoint
from service.processes.private_servers import running_servers
from tests.support.kills.deletions import Run, Runs
from tests.support.kills.faults import Action, Fault

pytestmark = pytest.mark.ci

#: States of entries in the stream: not yet delivered, delivered, in a batch.
_POINTS = (FailurePoint.PUBLISHED, FailurePoint.RELAYED, FailurePoint.CLAIMED, FailurePoint.BATCHED)
_CHANGES = (Action.EMPTY_VALKEY, Action.TRIM_STREAM, Action.DUPLICATE_STREAM)
_STREAM = "lethe:{}:deletions"


def disturbing(seed: int) -> Callable[[Run], None]:
    """After a request, sometimes empty Redis, trim the stream, remove its group, or publish requests again."""
    rng = random.Random(seed)

    def disturb(run: Run) -> None:
        servers = running_servers(run.lethe.home)
        assert servers is not None
        assert servers.redis_url is not None
        with redis.Redis.from_url(servers.redis_url) as client:
            stream = _STREAM.format(run.model_name)
            match rng.randrange(5):
                case 0:
                    client.flushall()
                case 1:
                    client.xtrim(stream, maxlen=rng.randrange(2), approximate=False)
                case 2:
                    client.delete(stream)
                case 3:
                    # All accepted requests, including completed ones, twice and in any order.
                    ids = [one.id for one in run.accepted.values()] * 2
                    for request in rng.sample(ids, len(ids)):
                        client.xadd(stream, {"request": request})
                    client.xadd(stream, {"request": "of something else"})

    return disturb


def test_each_deletion_happens_once_whatever_becomes_of_stream_and_unlearner(runs: Runs) -> None:
    faults = [Fault(Action.EMPTY_VALKEY, FailurePoint.PUBLISHED), Fault(Action.KILL_IT, FailurePoint.ERASED)]
    runs.check(faults, between=disturbing(0), api_workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_each_deletion_happens_once_whatever_random_things_become_of_the_stream(runs: Runs, seed: int) -> None:
    rng = random.Random(seed)
    faults = [Fault(rng.choice(_CHANGES), rng.choice(_POINTS)) for _ in range(3)]
    runs.check(faults, seed=seed, between=disturbing(seed))


@pytest.mark.slow
@pytest.mark.parametrize("point", _POINTS)
@pytest.mark.parametrize("change", _CHANGES)
def test_a_change_of_the_stream_at_a_failure_point(runs: Runs, change: Action, point: FailurePoint) -> None:
    runs.check([Fault(change, point), Fault(change, point)])
