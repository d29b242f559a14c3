"""Scenarios for a service under continuous prediction requests; each ends with its verdict.

In each, four processes send requests on keep-alive connections, from before the first fault until every answering
process has reached the newest version again.
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

#: Points of an unlearner at a fault: between the computation of a batch and its end.
BATCH_POINTS = points_of(Cause.BATCH)
#: Points for stopping an answering process: before it could have moved to the next version.
_BEFORE_COMMIT = BATCH_POINTS[: BATCH_POINTS.index(FailurePoint.COMMITTED)]
#: Duration of a stop without a condition, in seconds: from shorter than the lease to longer.
_STOPPED_S = (0.1, 6.0)


class Part(StrEnum):
    """The part that is killed or stopped."""

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
    """The amount of work."""

    deletions: int = 200
    kills: int = 20
    stops: int = 20
    #: Points at which an unlearner is stopped until another has taken over.
    takeovers: Sequence[FailurePoint] = (*START_POINTS, *BATCH_POINTS)
    #: How long Postgres is stopped (seconds).
    away_s: float = 60.0
    seed: int = 0
    #: Fixed events instead of drawn ones.
    chosen: Sequence[Event] = ()

    def events(self) -> list[Event]:
        """Draw the order of all kills and stops of every part, each at a drawn point."""
        if self.chosen:
            return list(self.chosen)
        rng = random.Random(self.seed)
        drawn = [(part, How.KILLED) for part in Part for _ in range(self.kills)]
        drawn += [(part, How.STOPPED) for part in Part for _ in range(self.stops)]
        rng.shuffle(drawn)
        return [Event(part, how, rng.choice(points_for(part, how))) for part, how in drawn]


def points_for(part: Part, how: How) -> Sequence[FailurePoint]:
    """Return the useful points for a fault."""
    return _BEFORE_COMMIT if (part, how) == (Part.API, How.STOPPED) else BATCH_POINTS


#: Reports the current step.
Announce = Callable[[str], None]
Scenario = Callable[[Ground, Effort, Announce], Verdict]


@contextmanager
def served(ground: Ground, name: str, doomed: int, *, standby: bool = False, start: bool = True) -> Iterator[Site]:
    """Yield a started site, and close it in any case."""
    site = Site(ground, name, doomed=doomed)
    try:
        yield site.start(standby=standby) if start else site
    finally:
        site.close()


def faults(ground: Ground, effort: Effort, announce: Announce) -> Verdict:
    """Two unlearners; every part is killed and stopped during deletions, with more deletions between."""
    events, rng = effort.events(), random.Random(effort.seed)
    count = max(effort.deletions, len(events))
    with served(ground, "faults", count, standby=True) as site:
        between = (count - len(events)) // max(1, len(events))
        for number, event in enumerate(events):
            announce(f"{number + 1} of {len(events)}: {event}")
            happen(site, event, rng)
            site.delete(between)
            site.until_all_answer()
        site.delete(count - (1 + between) * len(events))
        site.until_all_answer()
        return site.verdict


def happen(site: Site, event: Event, rng: random.Random) -> None:
    """Run a deletion with a fault while its unlearner stands at a point."""
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
            # It does not report ready while the other unlearner has the lease.
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
    """Return when a request is applied or the time is over: the duration of the fault."""
    end = time.monotonic() + seconds
    site.until(lambda: site.is_applied(request) or time.monotonic() > end, f"request {request} to be applied")


def postgres_away(ground: Ground, effort: Effort, announce: Announce) -> Verdict:
    """Stop Postgres for a minute; every question about a remaining node must be answered."""
    with served(ground, "away", 4) as site:
        site.delete(2)
        assert site.askers is not None
        before = site.askers.look()
        announce(f"Postgres is stopped for {effort.away_s:g} s")
        with paused(*postgres(ground.servers)):
            time.sleep(effort.away_s)
            after = site.askers.look()
        refused = [sum(one.refused for one in seen) for seen in (before, after)]
        answered = [sum(one.statuses.get("200", 0) for one in seen) for seen in (before, after)]
        announce(f"{answered[1] - answered[0]:,} answered meanwhile, {refused[1] - refused[0]:,} refused")
        assert refused[1] == refused[0], "predictions were refused while Postgres was away"
        assert answered[1] > answered[0], "nothing was answered while Postgres was away"
        site.faults += 1
        site.delete(2)
        site.until_all_answer()
        return site.verdict


def takeovers(ground: Ground, effort: Effort, announce: Announce) -> Verdict:
    """Stop an unlearner at every point from the lease on; it continues after another has taken over."""
    points = effort.takeovers
    with served(ground, "takeovers", 2 * len(points), standby=True) as site:
        for number, point in enumerate(points):
            announce(f"{number + 1} of {len(points)}: stopped at {point}")
            taken_over(site, point)
        return site.verdict


def taken_over(site: Site, point: FailurePoint) -> None:
    """One is stopped at a point, another completes its work, and the first then continues beside it."""
    if point in START_POINTS:
        # Stops the one that starts: its predecessor is killed in a batch, which is resumed.
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
    # Runs beside a process that may still write.
    site.delete()
    site.until_all_answer()
    site.faults += 1


def imports(ground: Ground, effort: Effort, announce: Announce) -> Verdict:
    """A newly trained model replaces the served one, and the unlearner is killed meanwhile."""
    with served(ground, "imports", 4, standby=True) as site:
        site.delete(2)
        announce("an import, of which the unlearner is killed once it is committed")
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


def recovery(ground: Ground, effort: Effort, announce: Announce) -> Verdict:
    """Restore the model's folder from an older backup; `recover` repeats the deletions that the database knows."""
    with served(ground, "recovery", 6) as site:
        copy = _backup(site, site.home / "model", announce)
        site.delete(2)
        _stop(site)
        replaced(site.home / "model", copy)
        _recover(site, announce)
        site.delete(2)
        site.until_all_answer()
        return site.verdict


def restored_home(ground: Ground, effort: Effort, announce: Announce) -> Verdict:
    """Restore the whole home from an older backup, including the publication, but not the database."""
    with served(ground, "restored", 6) as site:
        copy = _backup(site, site.home, announce)
        site.delete(2)
        _stop(site)
        replaced(site.home, copy)
        announce("a start with the older home")
        assert site.lethe.try_to_start() is not None, "a home that is older than its database was served"
        _recover(site, announce, "--take-over")
        site.delete(2)
        site.until_all_answer()
        return site.verdict


def _backup(site: Site, folder: Path, announce: Announce) -> Path:
    """Copy a folder between deletions, of a killed Lethe, so that nothing is cleaned up."""
    site.delete(2)
    announce("a backup")
    site.lethe.kill()
    copy = kept(folder, site.home.with_name(f"{site.home.name}-backup"))
    site.lethe.start()
    site.until_all_answer()
    return copy


def _stop(site: Site) -> None:
    """Kill it: a clean end would remove the publication."""
    site.lethe.kill()
    site.faults += 1


def _recover(site: Site, announce: Announce, *options: str, changes: bool = True) -> None:
    """Run `recover`; if it finds work, it makes a version."""
    announce("recover")
    ended = site.lethe.run("recover", *options)
    assert ended.status == 0, ended.stderr
    site.claim(site.newest + changes, "the recovery had ended")
    site.lethe.start()
    site.until_all_answer()


def deleted_share(ground: Ground, effort: Effort, announce: Announce) -> Verdict:
    """Remove the publication under a running service, and under a stopped one."""
    with served(ground, "share", 4) as site:
        site.delete()
        announce("removed while it runs")
        _remove(site.lethe.share.iterdir())
        site.delete()
        site.until_all_answer()
        announce("removed while it is stopped")
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


def copied_home(ground: Ground, effort: Effort, announce: Announce) -> Verdict:
    """Refuse a copy of the home beside its original, and then serve it in its place."""
    with served(ground, "copied", 4) as site:
        site.delete()
        _stop(site)
        copy = kept(site.home, site.home.with_name("copied-copy"))
        site.lethe.start()
        site.delete()
        announce("the copy beside its original")
        beside = site.beside(site.serving(copy, free_port()))
        assert beside.try_to_start() is not None, "a copy was served beside its original"
        site.until_all_answer()
        announce("the copy in the place of its original")
        _stop(site)
        replaced(copy, site.home)
        away = site.home.rename(site.home.with_name("copied-away"))
        site.home = copy
        site.lethe = site.serving(copy, site.port)
        assert site.lethe.try_to_start() is not None, "a copy was served that had not taken over"
        _recover(site, announce, "--take-over", changes=False)
        site.delete(2)
        site.until_all_answer()
        shutil.rmtree(away)
        return site.verdict


def second_home(ground: Ground, effort: Effort, announce: Announce) -> Verdict:
    """Serve the same model and database from another home: it is refused, or no answer becomes stale."""
    site = Site(ground, "first-home", doomed=4)
    try:
        port, home = free_port(), ground.folder / "second-home"
        home.mkdir(mode=0o700)
        site.start(ports=[port])
        site.delete()
        kept(site.home / "keys", home / "keys")
        other = site.beside(site.serving(home, port, model=site.home / "model"))
        announce("another home beside the first")
        other.launch()
        site.delete()
        site.until_all_answer()
        announce("the first home's unlearner is stopped amid a batch")
        site.gate.close(FailurePoint.COMMITTED)
        asked = site.request()
        stopped = site.held()
        site.until(lambda: other.has_ended or site.is_applied(asked[1]), "another home to take over, or to be refused")
        go_on(stopped)
        site.faults += 1
        site.complete(*asked)
        if other.has_ended:
            ended = other.ended()
            assert "belongs to another LETHE_HOME" in ended.stderr, ended.stderr
        else:
            announce("the other home ends")
            other.kill()
        site.delete()
        site.until_all_answer()
        return site.verdict
    finally:
        site.close()


def reboot(ground: Ground, effort: Effort, announce: Announce) -> Verdict:
    """Reboot the machine, and lose unsynced changes of the entries and of the share."""
    with served(ground, "reboot", 4) as site:
        site.delete()
        site.lethe.kill()
        older = [(folder, kept(folder, site.home / f"older-{folder.name}")) for folder in _unsynced(site)]
        site.lethe.start()
        site.delete()
        site.until_all_answer()
        for lost in (True, False):
            announce("a reboot" + (" that loses what was not synced" if lost else ""))
            _stop(site)
            if lost:
                for folder, copy in older:
                    replaced(folder, copy)
            ground.reboot()
            # Answering processes may start before the unlearner.
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
    """Check that nothing was stale, and that there were enough questions to notice."""
    assert not verdict.violations, "\n".join(verdict.violations[:20])
    assert verdict.answers >= 100, verdict
    # Every claim has questions, unless all answering processes were down at the time.
    assert verdict.asked_after >= verdict.claims / 2, verdict


def seeded() -> int:
    """Return the seed of all draws."""
    return int(os.environ.get("LETHE_TEST_SEED", "0"))
