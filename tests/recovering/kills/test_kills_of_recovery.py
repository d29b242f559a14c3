"""`lethe recover` killed at every failure point: run again, it has the same result as an uninterrupted one."""

import asyncio
import random
import shutil
import signal
import subprocess
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import pytest

from service.cli.console import ExitStatus
from service.domain.states import Cause
from service.failure_points import FailurePoint
from tests.support.kills.deletions import (
    Outcome,
    People,
    assert_same,
    assert_weights_follow,
    copied_home,
    keys_left,
    leftovers,
    outcome_of,
)
from tests.support.kills.doomed_process import DoomedLethe
from tests.support.kills.faults import FILE_CHANGE, SEED, Action, Fault, points_of
from tests.support.preloaded import Preloaded
from tests.support.service.homes import private_database

#: Number of deletions completed before the restored copy was made.
_BEFORE_COPY = 4
_FILE_CHANGES = 6
#: Choices of kills; Valkey has no part in a recovery.
_KILLS = (Action.KILL_IT, Action.KILL_IT, Action.KILL_POSTGRES)


class Part(StrEnum):
    """The part of a home that was restored to an earlier moment."""

    STORE = "model"
    DATABASE = "postgres"


class Restored:
    """Homes with all deletions completed and one part restored, and their results."""

    def __init__(self, people: People, preloaded: Preloaded, folder: Path) -> None:
        self._people = people
        self._preloaded = preloaded
        self._folder = folder
        self._templates: dict[Part, Path] = {}
        self._references: dict[tuple[Part, str], Outcome] = {}
        self._made = 0

    def check(self, part: Part, faults: Sequence[Fault], repair: str) -> None:
        """Check that a recovery with `faults` has the same result as one without."""
        if (part, repair) not in self._references:
            self._references[part, repair] = self._outcome(part, [], repair)
        outcome = self._outcome(part, faults, repair)
        assert_same(outcome, self._references[part, repair], self._people, repaired=repair == "always")

    def _outcome(self, part: Part, faults: Sequence[Fault], repair: str) -> Outcome:
        home = self._folder / f"home-{self._made}"
        self._made += 1
        copied_home(self._template(part), home)
        # Long enough for a busy machine: if the lease is lost, `recover` ends and must be run again.
        lethe = DoomedLethe(self._preloaded, home, faults, armed=True, repair=repair, lease_ttl_s=5)
        try:
            happened = 0
            while (ended := lethe.run("recover")).status != 0:
                assert lethe.happened > happened, ended.stderr
                happened = lethe.happened
                # Without Postgres it reports that and must be run again.
                assert ended.status in (-signal.SIGKILL, ExitStatus.UNREACHABLE), ended.stderr
                assert "Traceback" not in ended.stderr, ended.stderr
                if lethe.faults or faults[-1].point != FailurePoint.COMPLETED:
                    refused = lethe.try_to_start()
                    assert refused is not None, "it serves a store that is not recovered"
                    assert (refused.status, "./lethe recover" in refused.stderr) == (1, True), refused.stderr
            # There may be fewer file changes than a fault waits for.
            assert all(fault.point == FILE_CHANGE for fault in lethe.faults)
            lethe.launch_until_ready()
            assert keys_left(home) == 0
            with lethe.client() as client:
                outcome = outcome_of(self._people, lethe.model, client)
                # It continues normally.
                client.wait(client.request_deletion([self._people.graph.node_ids[-1]]).id, timeout_s=60.0)
            asyncio.run(assert_weights_follow(private_database(lethe)))
            lethe.kill(with_servers=True)
            assert leftovers(self._people, home) == set()
        finally:
            lethe.give_up()
        shutil.rmtree(home)
        return outcome

    def _template(self, part: Part) -> Path:
        if part not in self._templates:
            home, kept = self._people.home(self._folder / part.name), self._folder / f"{part.name}-kept"
            lethe = DoomedLethe(self._preloaded, home, repair="never", lease_ttl_s=1, max_wait_ms=5)
            wanted = list(enumerate(self._people.wanted))
            for some in (wanted[:_BEFORE_COPY], wanted[_BEFORE_COPY:]):
                with lethe.start().client() as client:
                    for one in [each.send(client, number).id for number, each in some]:
                        client.wait(one, timeout_s=60.0)
                assert lethe.stop().status == 0
                if not kept.exists():
                    subprocess.run(["cp", "-a", home / part, kept], check=True)
            shutil.rmtree(home / part)
            kept.rename(home / part)
            self._templates[part] = home
        return self._templates[part]


@pytest.fixture(scope="session")
def restored(people: People, preloaded: Preloaded, tmp_path_factory: pytest.TempPathFactory) -> Restored:
    return Restored(people, preloaded, tmp_path_factory.mktemp("restored"))


def scenarios() -> list[object]:
    """Return every point of a recovery, with an older store and with an older database; the rest is drawn."""
    rng = random.Random(SEED)
    found: list[object] = []
    for part in Part:
        for point in points_of(Cause.RECOVERY):
            fault = Fault(rng.choice(_KILLS), point, cause=Cause.RECOVERY)
            found.append(pytest.param(part, fault, rng.choice(["never", "always"]), id=f"{part} {fault}"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("part", "fault", "repair"), scenarios())
def test_a_recovery_that_is_killed_anywhere_is_gone_on_with(
    restored: Restored, part: Part, fault: Fault, repair: str
) -> None:
    restored.check(part, [fault], repair)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(_FILE_CHANGES))
def test_a_recovery_that_is_killed_at_changes_of_files_is_gone_on_with(restored: Restored, seed: int) -> None:
    rng = random.Random(SEED + seed)
    faults = [Fault(Action.KILL_IT, FILE_CHANGE, rng.randrange(1, 16)) for _ in range(2)]
    restored.check(Part.STORE, faults, rng.choice(["never", "always"]))
