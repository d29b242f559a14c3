"""No prediction is from a version older than a known applied one, whatever is killed, stopped or restored.

`.ci/run` takes two faults of one service; the slow ones take the others. The whole checker, with each scenario in
full, is `python -m tests.support.predictions.checker`; see there.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.failure_points import FailurePoint
from service.processes.private_servers import Embedded
from tests.support.predictions.asker import Seen
from tests.support.predictions.ground import Ground, Servers, trained
from tests.support.predictions.judging import Claim, judged
from tests.support.predictions.scenarios import (
    SCENARIOS,
    Effort,
    Event,
    How,
    Part,
    assert_good,
    points_for,
    seeded,
)
from tests.support.preloaded import Preloaded

#: Makes the ground of a service, with a mistake or without.
Grounds = Callable[[str | None], Ground]

#: The answering process cannot move to a version committed meanwhile.
_HELD_UP = Event(Part.API, How.STOPPED, FailurePoint.COMMITTING)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("checked") / "model")


@pytest.fixture
def ground(preloaded: Preloaded, model: Path, tmp_path: Path) -> Iterator[Grounds]:
    with Embedded(tmp_path / "servers", durable=False) as urls:
        assert urls.database_url is not None
        assert urls.redis_url is not None
        servers = Servers(urls.database_url, urls.redis_url, tmp_path / "servers")
        yield lambda mutant: Ground(preloaded, model, tmp_path, servers, mutant)


def some() -> list[Event]:
    """Return faults of two parts, at points drawn by LETHE_TEST_SEED."""
    rng, parts = random.Random(seeded()), (Part.UNLEARNER, Part.API)
    hows = (How.STOPPED, How.STOPPED)
    return [Event(part, how, rng.choice(points_for(part, how))) for part, how in zip(parts, hows, strict=True)]


@pytest.mark.ci
@pytest.mark.timeout(600)
def test_no_prediction_is_stale_and_readers_come_back_when_parts_are_killed_and_stopped(ground: Grounds) -> None:
    events = some()
    assert_good(SCENARIOS["faults"](ground(None), Effort(deletions=len(events), chosen=events), print))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_prediction_is_stale_whatever_happens(ground: Grounds, name: str) -> None:
    assert_good(SCENARIOS[name](ground(None), Effort(seed=seeded()), print))


@pytest.mark.slow
def test_a_version_that_is_applied_before_readers_have_it_is_noticed(ground: Grounds) -> None:
    effort = Effort(deletions=4, chosen=[_HELD_UP, _HELD_UP, Event(Part.UNLEARNER, How.STOPPED, FailurePoint.APPLIED)])
    verdict = SCENARIOS["faults"](ground("applied-before-shown"), effort, print)
    assert any("answered a question asked" in one for one in verdict.violations), verdict


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_session_that_shows_nothing_before_it_commits_is_noticed(ground: Grounds) -> None:
    # The mutant overwrites the version that readers use: they answer 500, or none answers.
    with pytest.raises(AssertionError, match=r"is answered 500|every process to answer"):
        assert_good(SCENARIOS["reboot"](ground("shown-only-by-a-commit"), Effort(), print))


# The judge judges, without a service.

_CLAIM = Claim(2, 100.0, 50.0, "node 7 was applied in version 2", "7")


@pytest.mark.parametrize(
    ("seen", "violations"),
    [
        (Seen(versions={"1": (99.9, 49.9), "2": (101.0, 51.0)}), 0),
        (Seen(versions={"1": (100.1, 49.9)}), 1),
        (Seen(versions={"1": (99.9, 50.1)}), 1),
        (Seen(versions={"2": (100.1, 50.1)}, doomed={"7": (100.1, 50.1)}), 1),
        (Seen(versions={"1": (99.9, 49.9)}, doomed={"7": (99.9, 49.9)}), 0),
        (Seen(wrong=["node 8 is answered 404"]), 1),
    ],
)
def test_an_answer_is_stale_when_its_question_came_after_the_claim(seen: Seen, violations: int) -> None:
    assert len(judged([seen], [_CLAIM]).violations) == violations


def test_a_run_in_which_nobody_asked_after_the_claims_proves_nothing() -> None:
    seen = Seen(versions={"1": (99.9, 49.9)}, asked={"9990": 1000})
    with pytest.raises(AssertionError):
        assert_good(judged([seen], [_CLAIM]))
    seen.asked["10010"] = 1
    assert_good(judged([seen], [_CLAIM]))
