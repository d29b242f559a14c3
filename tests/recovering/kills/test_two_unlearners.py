"""An unlearner that is stopped beyond its lease and continues beside its successor changes nothing any more.

It may be in a batch, a repair, an import or a recovery. LETHE_TEST_SEED draws the file changes and the repair policy.
"""

import asyncio
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model_store import gram_checkpoint
from service.domain.states import Cause
from service.failure_points import FailurePoint
from tests.support.everyday import everyday
from tests.support.kills.another_model import another_model, beside
from tests.support.kills.deletions import People, Runs, assert_each_happened_once, assert_same, template_of
from tests.support.kills.doomed_process import DoomedLethe
from tests.support.kills.faults import FILE_CHANGE, SEED, START_POINTS, Action, Fault, of_cause
from tests.support.kills.pairs import OF_CAUSE, Pair
from tests.support.preloaded import Preloaded
from tests.support.processes.lethe_process import copied
from tests.support.service.homes import digests
from tests.support.service.repair_world import query

pytestmark = pytest.mark.ci

#: A check takes the cause of the version begun, the faults that the first meets in it, and the repair policy.
Check = Callable[[Cause, Sequence[Fault], str], None]

#: Number of file changes drawn for each cause, and the number to draw from: it makes a few more.
_DRAWN = 4
_FILE_CHANGES = {Cause.BATCH: 24, Cause.REPAIR: 10, Cause.IMPORT: 40, Cause.RECOVERY: 28}


@pytest.fixture
def check(
    people: People,
    preloaded: Preloaded,
    tmp_path: Path,
    database_url: str,
    redis_url: str,
    runs: Runs,
    runs_of_another: Callable[[], Runs],
) -> Iterator[Check]:
    """Return a check in which the first of two Lethes meets faults while making a version."""
    made: list[DoomedLethe] = []

    def carry_out(cause: Cause, faults: Sequence[Fault], repair: str) -> None:
        of_cause, model = OF_CAUSE[cause], copied(people.template / "model", tmp_path / "model")
        settings: dict[str, Any] = {
            "database_url": database_url,
            "redis_url": redis_url,
            "model": model,
            "repair": repair,
        }
        settings |= {"lease_ttl_s": 2, "max_wait_ms": 5, **of_cause.settings}
        (home := tmp_path / "home").mkdir(mode=0o700)
        first = DoomedLethe(preloaded, home, faults, armed=True, **settings)
        if cause is Cause.RECOVERY:
            (home := tmp_path / "another-home").mkdir(mode=0o700)
            second = DoomedLethe(preloaded, home, armed=True, **settings)
        else:
            second = DoomedLethe(preloaded, home, armed=True, role="unlearner", part="-second", **settings)
        made.extend((first, second))
        goes_on_beside_its_successor(
            of_cause(people, first, second, database_url=database_url),
            runs_of_another() if cause is Cause.IMPORT else runs,
            str(settings["repair"]),
        )

    yield carry_out
    for lethe in made:
        lethe.give_up()
    shutil.rmtree(tmp_path)


@pytest.fixture(scope="session")
def runs_of_another(
    people: People, preloaded: Preloaded, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Runs]:
    """Runs that serve the imported model from the start."""
    made: list[Runs] = []

    def make() -> Runs:
        if not made:
            folder = tmp_path_factory.mktemp("another")
            template = template_of(preloaded, another_model(people, folder / "model"), folder / "template")
            made.append(Runs(replace(people, template=template), preloaded, folder))
        return made[0]

    return make


def goes_on_beside_its_successor(pair: Pair, runs: Runs, repair: str) -> None:
    """Stop the first, let the second complete its work, continue the first, and check that nothing changes."""
    count, repaired = len(pair.people.wanted), repair == "always"
    begun = pair.stop_first()
    pair.take_over()
    middle = len(begun) + 3
    pair.complete(pair.answering, begun + pair.ask(pair.answering, range(len(begun), middle)))
    pair.until(lambda: not unfinished(pair))
    before, versions = stored(pair.first.model), committed(pair)
    assert before is not None

    pair.go_on()
    # The second removes what the first still wrote into its own files, since it may contain data deleted meanwhile.
    pair.until(lambda: stored(pair.first.model) == before)
    assert committed(pair) == versions
    pair.complete(pair.answering, pair.ask(pair.answering, range(middle, count)))
    pair.until(lambda: not unfinished(pair))
    asyncio.run(assert_each_happened_once(pair.people, pair.database_url))
    reference = runs.uninterrupted(repair)
    assert_same(pair.outcome(pair.answering), reference, pair.people, repaired=repaired)

    # It takes over again, and serves what the other has left.
    pair.give_back()
    assert_same(pair.outcome(pair.first), reference, pair.people, repaired=repaired)


def stored(model: Path) -> dict[str, str] | None:
    """Return the digests of a model's files, except checkpoints, which the second writes when idle.

    Includes what imports have left beside the model. None if files disappear meanwhile.
    """
    try:
        found = {name: digest for name, digest in digests(model).items() if gram_checkpoint.FILE not in name}
    except FileNotFoundError:
        return None
    return found | dict.fromkeys(beside(model.parent), "")


def committed(pair: Pair) -> list[tuple[object, ...]]:
    """Return all committed versions."""
    return asyncio.run(query(pair.database_url, "SELECT number, fencing, cause, finished_at FROM versions ORDER BY 1"))


def unfinished(pair: Pair) -> bool:
    """Whether a version is unfinished, or an import is waiting."""
    statement = (
        "SELECT 1 FROM versions WHERE finished_at IS NULL UNION ALL SELECT 1 FROM imports WHERE finished_at IS NULL"
    )
    return bool(asyncio.run(query(pair.database_url, statement)))


def at_points() -> list[object]:
    """Return every point of every cause, and of a start that finishes earlier work."""
    killed = Fault(Action.KILL_IT, FailurePoint.ERASED, cause=Cause.BATCH)
    found = [(Cause.BATCH, [killed, Fault(Action.STOP_IT, point)]) for point in START_POINTS]
    found += [(Cause.BATCH, [Fault(Action.STOP_IT, FailurePoint.BATCHED)])]
    found += [(cause, [fault]) for cause in OF_CAUSE for fault in of_cause(cause, Action.STOP_IT)]
    return titled(found)


def amid_files() -> list[object]:
    """Return some file changes of every cause."""
    rng = random.Random(SEED)
    drawn = [(cause, number) for cause in OF_CAUSE for number in rng.sample(range(1, _FILE_CHANGES[cause] + 1), _DRAWN)]
    return titled([(cause, [Fault(Action.STOP_IT, FILE_CHANGE, number, cause)]) for cause, number in drawn])


def titled(found: Sequence[tuple[Cause, Sequence[Fault]]]) -> list[object]:
    """Return the cases with names, and the repair policy drawn for each."""
    rng = random.Random(SEED)
    policies = ["never", "always"]
    return [pytest.param(*one, rng.choice(policies), id=", ".join(map(str, one[1]))) for one in found]


@pytest.mark.parametrize(
    ("cause", "point"),
    everyday(
        [
            (Cause.BATCH, FailurePoint.ERASED),
            (Cause.REPAIR, FailurePoint.WRITTEN),
            (Cause.IMPORT, FailurePoint.SWAPPED),
            (Cause.RECOVERY, FailurePoint.COMMITTED),
        ],
        (Cause.BATCH, FailurePoint.ERASED),
    ),
)
def test_an_unlearner_that_lost_its_lease_while_it_was_stopped_changes_nothing(
    check: Check, cause: Cause, point: FailurePoint
) -> None:
    check(cause, [Fault(Action.STOP_IT, point, cause=cause)], "never")


@pytest.mark.slow
@pytest.mark.parametrize(("cause", "faults", "repair"), at_points())
def test_one_that_is_stopped_at_any_failure_point_changes_nothing(
    check: Check, cause: Cause, faults: Sequence[Fault], repair: str
) -> None:
    check(cause, faults, repair)


@pytest.mark.slow
@pytest.mark.parametrize(("cause", "faults", "repair"), amid_files())
def test_one_that_is_stopped_at_a_change_of_a_file_changes_nothing(
    check: Check, cause: Cause, faults: Sequence[Fault], repair: str
) -> None:
    check(cause, faults, repair)
