"""Processes killed or stopped at every failure point of an import: the result equals that of an uninterrupted one."""

import asyncio
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from service.domain.states import Cause
from tests.support.kills.another_model import another_model, beside
from tests.support.kills.deletions import (
    Outcome,
    People,
    Run,
    assert_same,
    assert_weights_follow,
    copied_home,
    keys_left,
    leftovers,
    outcome_of,
)
from tests.support.kills.doomed_process import DoomedLethe
from tests.support.kills.faults import FILE_CHANGE, INTERRUPTIONS, SEED, Action, Fault, points_of
from tests.support.preloaded import Preloaded
from tests.support.service.homes import private_database
from tests.support.service.repair_world import query

_FILE_CHANGES = 6


class Imports:
    """Homes in which an import waits, and its result."""

    def __init__(self, people: People, preloaded: Preloaded, folder: Path) -> None:
        self._people = people
        self._preloaded = preloaded
        self._folder = folder
        self._templates: dict[bool, Path] = {}
        self._references: dict[tuple[bool, str], Outcome] = {}
        self._made = 0

    def check(self, faults: Sequence[Fault], *, excluding: bool, repair: str) -> None:
        """Check that an import with `faults` has the same result as one without; `excluding` deleted data, or nothing
        deleted.
        """
        if (excluding, repair) not in self._references:
            self._references[excluding, repair] = self._outcome([], excluding, repair)
        outcome = self._outcome(faults, excluding, repair)
        assert_same(outcome, self._references[excluding, repair], self._people, repaired=repair == "always")

    def _outcome(self, faults: Sequence[Fault], excluding: bool, repair: str) -> Outcome:
        people, home = self._people, self._folder / f"home-{self._made}"
        self._made += 1
        template = self._template(excluding)
        copied_home(template, home)
        before = int((home / "model" / "CURRENT").read_text().split("-")[0])
        lethe = DoomedLethe(self._preloaded, home, faults, armed=True, repair=repair, lease_ttl_s=1)
        try:
            run = Run(people, lethe.launch_until_ready(), 0)
            # There may be fewer file changes than a fault waits for.
            expected = [fault for fault in faults if fault.point != FILE_CHANGE]
            run.until(lambda client: client.model().version == before + 1 and not beside(home))
            run.until(lambda _: not expected or not lethe.faults)
            statement = "SELECT i.status, v.number, v.deleted_nodes FROM imports i JOIN versions v USING (id)"
            gone = people.deleted if excluding else []
            run.until(
                lambda _: (
                    asyncio.run(query(private_database(lethe), statement)) == [("completed", before + 1, len(gone))]
                )
            )
            outcome = run.persist(lambda client: outcome_of(people, lethe.model, client, gone=gone))
            # It continues normally, even if a fault that still waits for its file change happens here.
            last = run.persist(
                lambda client: client.request_deletion([people.graph.node_ids[-1]], idempotency_key="the-last")
            )
            run.until(lambda client: client.deletion(last.id).status == "completed" and keys_left(home) == 0)
            run.persist(lambda _: asyncio.run(assert_weights_follow(private_database(lethe))))
            lethe.kill(with_servers=True)
            assert not excluding or leftovers(people, home) == set()
        finally:
            lethe.give_up()
        shutil.rmtree(home)
        return outcome

    def _template(self, excluding: bool) -> Path:
        """Return a stopped home that will import another model at its next start."""
        if excluding not in self._templates:
            people, home = self._people, self._people.home(self._folder / f"excluding-{excluding}")
            lethe = DoomedLethe(self._preloaded, home, repair="never", lease_ttl_s=1, max_wait_ms=5)
            if excluding:
                with lethe.start().client() as client:
                    for one in [each.send(client, number).id for number, each in enumerate(people.wanted)]:
                        client.wait(one, timeout_s=60.0)
                assert lethe.stop().status == 0
            another = another_model(people, self._folder / "another")
            ended = lethe.run("model", "import", another, *(["--exclude-deleted"] if excluding else []))
            assert ended.status == 0, ended.stderr
            assert "Its next start will import the model" in ended.stdout
            self._templates[excluding] = home
        return self._templates[excluding]


@pytest.fixture(scope="session")
def imports(people: People, preloaded: Preloaded, tmp_path_factory: pytest.TempPathFactory) -> Imports:
    return Imports(people, preloaded, tmp_path_factory.mktemp("imports"))


def scenarios() -> list[object]:
    """Return every point of an import, with drawn kills and imports."""
    rng = random.Random(SEED)
    ways = [(True, "never"), (True, "always"), (False, "never")]
    found: list[object] = []
    for point in points_of(Cause.IMPORT):
        fault = Fault(rng.choice(INTERRUPTIONS), point, cause=Cause.IMPORT)
        found.append(pytest.param(fault, *rng.choice(ways), id=str(fault)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "excluding", "repair"), scenarios())
def test_an_import_that_is_killed_anywhere_ends_as_one_that_was_not(
    imports: Imports, fault: Fault, excluding: bool, repair: str
) -> None:
    imports.check([fault], excluding=excluding, repair=repair)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(_FILE_CHANGES))
def test_an_import_that_is_killed_at_changes_of_files_ends_as_one_that_was_not(imports: Imports, seed: int) -> None:
    rng = random.Random(SEED + seed)
    kills = (Action.KILL_IT, Action.KILL_SUPERVISOR)
    faults = [Fault(rng.choice(kills), FILE_CHANGE, rng.randrange(1, 40)) for _ in range(2)]
    imports.check(faults, excluding=rng.random() < 0.7, repair=rng.choice(["never", "always"]))
