"""What a service whose predictions are asked for without a pause goes through; each scenario ends with its verdict.

In every one four processes ask on keep-alive connections, from before the first fault until every process that answers
has come back to the newest version.
"""

import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from service.domain.states import Cause
from service.failure_points import FailurePoint
from tests.support.kills.faults import START_POINTS, points_of
from tests.support.predictions.ground import Ground
from tests.support.predictions.judging import Verdict
from tests.support.predictions.site import (
    GatedLethe,
    Site,
    go_on,
    kept,
    kill,
    paused,
    postgres,
    replaced,
    valkey,
)
from tests.support.processes.workers import free_port

#: Where an unlearner is when something happens: between the computation of a batch and its end.
BATCH_POINTS = points_of(Cause.BATCH)
#: Where it is when a process that answers is stopped: before that process could have moved to the next version.
_BEFORE_COMMIT = BATCH_POINTS[: BATCH_POINTS.index(FailurePoint.COMMITTED)]
#: Seconds for which something is stopped that nobody waits for: shorter and longer than a lease of either kind.
_STOPPED_S = (0.1, 3.0)


class Part(StrEnum):
    """What is killed and stopped."""

    UNLEARNER = "unlearner"
    API = "answering process"
    SUPERVISOR = "supervisor"
    POSTGRES = "Postgres"
    VALKEY = "Valkey"


class How(StrEnum):
    """SIGKILL; or SIGSTOP, and SIGCONT later."""

    KILLED = "killed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Event:
    """A fault while the unlearner stands at a point of a batch."""

    part: Part
    how: How
    point: FailurePoint

    def __str__(self) -> str:
        return f"{self.part} {self.how} at {self.point}"


@dataclass(frozen=True)
class Effort:
    """How much is done."""

    deletions: int = 200
    kills: int = 20
    stops: int = 20
    #: At which points an unlearner is stopped until another has taken over.
    takeovers: Sequence[FailurePoint] = (*START_POINTS, *BATCH_POINTS)
    #: For how long Postgres is away (seconds).
    away_s: float = 60.0
    seed: int = 0
    #: What happens in the place of what is drawn.
    chosen: Sequence[Event] = ()

    def events(self) -> list[Event]:
        """Every part killed and stopped so many times, in a drawn order, each at a drawn point."""
        if self.chosen:
            return list(self.chosen)
        rng = random.Random(self.seed)
        drawn = [(part, How.KILLED) for part in Part for _ in range(self.kills)]
        drawn += [(part, How.STOPPED) for part in Part for _ in range(self.stops)]
        rng.shuffle(drawn)
        return [Event(part, how, rng.choice(points_for(part, how))) for part, how in drawn]


def points_for(part: Part, how: How) -> Sequence[FailurePoint]:
    """At which points a fault is of use."""
    return _BEFORE_COMMIT if (part, how) == (Part.API, How.STOPPED) else BATCH_POINTS


#: Tells whoever watches what is done now.
Tell = Callable[[str], None]
Scenario = Callable[[Ground, Effort, Tell], Verdict]


@contextmanager
def served(ground: Ground, name: str, doomed: int, *, standby: bool = False, start: bool = True) -> Iterator[Site]:
    """A site, started, and ended whatever happens."""
    site = Site(ground, name, doomed=doomed)
    try:
        yield site.start(standby=standby) if start else site
    finally:
        site.close()


def faults(ground: Ground, effort: Effort, tell: Tell) -> Verdict:
    """Two unlearners; every part is killed and stopped amid deletions, and more deletions go on between."""
    events, rng = effort.events(), random.Random(effort.seed)
    count = max(effort.deletions, len(events))
    with served(ground, "faults", count, standby=True) as site:
        between = (count - len(events)) // max(1, len(events))
        for number, event in enumerate(events):
            tell(f"{number + 1} of {len(events)}: {event}")
            happen(site, event, rng)
            site.delete(between)
            site.until_all_answer()
        site.delete(count - (1 + between) * len(events))
        site.until_all_answer()
        return site.verdict


def happen(site: Site, event: Event, rng: random.Random) -> None:
    """A deletion, in which a fault happens while the unlearner that carries it out stands at a point."""
    servers = site.ground.servers
    site.gate.close(event.point)
    asked = site.request()
    at = site.held()
    seconds, answering = rng.uniform(*_STOPPED_S), site.lethe.answering()
    match event.part, event.how:
        case Part.UNLEARNER, How.KILLED:
            kill(at)
        case Part.UNLEARNER, How.STOPPED:
            # The other takes over.
            site.complete(*asked)
            go_on(at)
        case Part.API, How.KILLED:
            kill(rng.choice(answering))
            go_on(at)
        case Part.API, How.STOPPED:
            with paused(rng.choice(answering)):
                go_on(at)
                _applied_or_past(site, asked[1], seconds)
        case Part.SUPERVISOR, How.KILLED:
            site.lethe.kill()
            go_on(at)
            # It does not say that it is ready while the other unlearner has the lease.
            site.lethe.launch()
        case Part.SUPERVISOR, How.STOPPED:
            with paused(site.lethe.pid):
                go_on(at)
                site.complete(*asked)
        case Part.POSTGRES | Part.VALKEY, how:
            pids = postgres(servers) if event.part is Part.POSTGRES else valkey(servers)
            if how is How.KILLED:
                kill(*pids)
                go_on(at)
            else:
                with paused(*pids):
                    go_on(at)
                    _applied_or_past(site, asked[1], seconds)
    site.faults += 1
    site.complete(*asked)


def _applied_or_past(site: Site, request: str, seconds: float) -> None:
    """Return when a request is applied, or after a while: a fault that lasts so long."""
    end = time.monotonic() + seconds
    site.until(lambda: site.is_applied(request) or time.monotonic() > end, f"request {request} to be applied")


def postgres_away(ground: Ground, effort: Effort, tell: Tell) -> Verdict:
    """Postgres is stopped for a minute, in which every question about a node that stays is answered."""
    with served(ground, "away", 4) as site:
        site.delete(2)
        assert site.askers is not None
        before = site.askers.look()
        tell(f"Postgres is stopped for {effort.away_s:g} s")
        with paused(*postgres(ground.servers)):
            time.sleep(effort.away_s)
            after = site.askers.look()
        refused = [sum(one.refused for one in seen) for seen in (before, after)]
        answered = [sum(one.statuses.get("200", 0) for one in seen) for seen in (before, after)]
        tell(f"{answered[1] - answered[0]:,} answered meanwhile, {refused[1] - refused[0]:,} refused")
        assert refused[1] == refused[0], "predictions were refused while Postgres was away"
        assert answered[1] > answered[0], "nothing was answered while Postgres was away"
        site.faults += 1
        site.delete(2)
        site.until_all_answer()
        return site.verdict


def takeovers(ground: Ground, effort: Effort, tell: Tell) -> Verdict:
    """An unlearner is stopped at every point from the lease on, and goes on after another has taken over."""
    points = effort.takeovers
    with served(ground, "takeovers", 2 * len(points), standby=True) as site:
        for number, point in enumerate(points):
            tell(f"{number + 1} of {len(points)}: stopped at {point}")
            taken_over(site, point)
        return site.verdict


def taken_over(site: Site, point: FailurePoint) -> None:
    """One is stopped at a point, another completes what it began, and it goes on beside that."""
    if point in START_POINTS:
        # Whoever starts is stopped: the one in whose place it starts is killed amid a batch, which is resumed.
        site.gate.close(FailurePoint.COMMITTED)
        asked = site.request()
        holder = site.held()
        site.gate.close(point)
        kill(holder)
    else:
        site.gate.close(point)
        asked = site.request()
    stopped = site.held()
    site.complete(*asked)
    site.until_all_answer()
    go_on(stopped)
    # Beside one that may still write.
    site.delete()
    site.until_all_answer()
    site.faults += 1


def imports(ground: Ground, effort: Effort, tell: Tell) -> Verdict:
    """A newly trained model takes the served one's place, the unlearner being killed amid that."""
    with served(ground, "imports", 4, standby=True) as site:
        site.delete(2)
        tell("an import, of which the unlearner is killed once it is committed")
        site.gate.close(FailurePoint.COMMITTED)
        command = site.beside(GatedLethe(ground, site.home, site.gate, site.home.with_name("no-gate"), part="-import"))
        command.launch("model", "import", "--exclude-deleted", str(ground.model))
        kill(site.held())
        ended = command.ended()
        assert ended.status == 0, ended.stderr
        site.claim(site.newest + 1, "the import had ended")
        site.faults += 1
        site.until_all_answer()
        site.delete(2)
        site.until_all_answer()
        return site.verdict


def recovery(ground: Ground, effort: Effort, tell: Tell) -> Verdict:
    """The model's folder is restored from an older backup, and `recover` deletes again what the database knows."""
    with served(ground, "recovery", 6) as site:
        copy = _backup(site, site.home / "model", tell)
        site.delete(2)
        _stop(site)
        replaced(site.home / "model", copy)
        _recover(site, tell)
        site.delete(2)
        site.until_all_answer()
        return site.verdict


def restored_home(ground: Ground, effort: Effort, tell: Tell) -> Verdict:
    """All of the home is restored from an older backup, what is answered from included; the database is not."""
    with served(ground, "restored", 6) as site:
        copy = _backup(site, site.home, tell)
        site.delete(2)
        _stop(site)
        replaced(site.home, copy)
        tell("a start with the older home")
        assert site.lethe.try_to_start() is not None, "a home that is older than its database was served"
        _recover(site, tell, "--take-over")
        site.delete(2)
        site.until_all_answer()
        return site.verdict


def _backup(site: Site, folder: Path, tell: Tell) -> Path:
    """A copy of a folder, taken between deletions, of a Lethe that is killed: nothing is tidied up."""
    site.delete(2)
    tell("a backup")
    site.lethe.kill()
    copy = kept(folder, site.home.with_name(f"{site.home.name}-backup"))
    site.lethe.start()
    site.until_all_answer()
    return copy


def _stop(site: Site) -> None:
    """Killed: an orderly end would take the publication with it."""
    site.lethe.kill()
    site.faults += 1


def _recover(site: Site, tell: Tell, *options: str, changes: bool = True) -> None:
    """Run `recover`; where it finds something to do, it makes a version."""
    tell("recover")
    ended = site.lethe.run("recover", *options)
    assert ended.status == 0, ended.stderr
    site.claim(site.newest + changes, "the recovery had ended")
    site.lethe.start()
    site.until_all_answer()


def deleted_share(ground: Ground, effort: Effort, tell: Tell) -> Verdict:
    """What is answered from is removed under a running service, and under one that is stopped."""
    with served(ground, "share", 4) as site:
        site.delete()
        tell("removed while it runs")
        _remove(site.lethe.share.iterdir())
        site.delete()
        site.until_all_answer()
        tell("removed while it is stopped")
        _stop(site)
        _remove(site.lethe.share.iterdir())
        site.lethe.start()
        site.until_all_answer()
        site.delete(2)
        site.until_all_answer()
        return site.verdict


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        shutil.rmtree(path)


def copied_home(ground: Ground, effort: Effort, tell: Tell) -> Verdict:
    """A copy of the home is refused beside its original, and then served in its place."""
    with served(ground, "copied", 4) as site:
        site.delete()
        _stop(site)
        copy = kept(site.home, site.home.with_name("copied-copy"))
        site.lethe.start()
        site.delete()
        tell("the copy beside its original")
        beside = site.beside(site.serving(copy, free_port()))
        assert beside.try_to_start() is not None, "a copy was served beside its original"
        site.until_all_answer()
        tell("the copy in the place of its original")
        _stop(site)
        replaced(copy, site.home)
        away = site.home.rename(site.home.with_name("copied-away"))
        site.home = copy
        site.lethe = site.serving(copy, site.port)
        assert site.lethe.try_to_start() is not None, "a copy was served that had not taken over"
        _recover(site, tell, "--take-over", changes=False)
        site.delete(2)
        site.until_all_answer()
        shutil.rmtree(away)
        return site.verdict


def second_home(ground: Ground, effort: Effort, tell: Tell) -> Verdict:
    """Another home begins to serve the same model from the same database: it is refused, or nobody is stale by it."""
    site = Site(ground, "first-home", doomed=4)
    try:
        port, home = free_port(), ground.folder / "second-home"
        home.mkdir(mode=0o700)
        site.start(ports=[port])
        site.delete()
        kept(site.home / "keys", home / "keys")
        other = site.beside(site.serving(home, port, model=site.home / "model"))
        tell("another home beside the first")
        other.launch()
        site.delete()
        site.until_all_answer()
        tell("the first home's unlearner is stopped amid a batch")
        site.gate.close(FailurePoint.COMMITTED)
        asked = site.request()
        stopped = site.held()
        site.until(lambda: other.has_ended or site.is_applied(asked[1]), "another home to take over, or to be refused")
        go_on(stopped)
        site.faults += 1
        site.complete(*asked)
        if not other.has_ended:
            tell("the other home ends")
            other.kill()
        site.delete()
        site.until_all_answer()
        return site.verdict
    finally:
        site.close()


def reboot(ground: Ground, effort: Effort, tell: Tell) -> Verdict:
    """The machine is started anew, and what it had not yet written of the entries and of the share is lost."""
    with served(ground, "reboot", 4) as site:
        site.delete()
        site.lethe.kill()
        older = [(folder, kept(folder, site.home / f"older-{folder.name}")) for folder in _unsynced(site)]
        site.lethe.start()
        site.delete()
        site.until_all_answer()
        for lost in (True, False):
            tell("a reboot" + (" that loses what was not synced" if lost else ""))
            _stop(site)
            if lost:
                for folder, copy in older:
                    replaced(folder, copy)
            ground.reboot()
            # Whoever answers may be there before the unlearner.
            site.gate.close(FailurePoint.LEASED)
            site.lethe.launch()
            go_on(site.held())
            assert site.lethe.until_ready() is None, site.lethe.log()
            site.until_all_answer()
            site.delete()
            site.until_all_answer()
        return site.verdict


def _unsynced(site: Site) -> list[Path]:
    return [site.home / "run" / "heads", site.lethe.share]


SCENARIOS: Mapping[str, Scenario] = {
    "faults": faults,
    "postgres-away": postgres_away,
    "takeovers": takeovers,
    "import": imports,
    "recovery": recovery,
    "restored-home": restored_home,
    "deleted-share": deleted_share,
    "copied-home": copied_home,
    "second-home": second_home,
    "reboot": reboot,
}


def assert_good(verdict: Verdict) -> None:
    """Nothing was stale, and enough was asked to have noticed."""
    assert not verdict.violations, "\n".join(verdict.violations[:20])
    assert verdict.answers >= 100, verdict
    # A claim is asked about unless everybody who answers was away just then.
    assert verdict.asked_after >= verdict.claims / 2, verdict


def seeded() -> int:
    """By which everything is drawn."""
    return int(os.environ.get("LETHE_TEST_SEED", "0"))
