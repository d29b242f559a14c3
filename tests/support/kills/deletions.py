"""The same deletions for every run, over a graph of people, and the conditions after their completion."""

import asyncio
import contextlib
import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import asyncpg
import numpy as np
from numpy.typing import NDArray

from lethe_client import LetheClient, ProblemError, ServerUnreachable
from lethe_client.results import Accepted
from model_store import gram_checkpoint
from projector.graph.graph import Graph
from service.access.request_keys import SLOT_BYTES
from service.domain.states import Cause
from service.errors import Unavailable
from service.log.checkpoints import read
from service.log.merkle import leaf_hash, root
from service.log.verification import WeightsChains
from tests.support.kills.doomed_process import Died, DoomedLethe
from tests.support.kills.faults import Fault
from tests.support.preloaded import Preloaded
from tests.support.processes.lethe_process import copied, figures_of, weights_on_disk
from tests.support.processes.workers import free_port
from tests.support.service.homes import facts, private_database
from tests.support.service.people import traces
from tests.support.service.repair_world import Served, query

#: Longest wait for any condition (seconds); on a quiet machine a restart takes two.
_PATIENCE_S = 120.0
#: Relative distance to the weights of retraining at which a repair counts as converged, from both sides.
REPAIR_TOLERANCE = 2e-8

T = TypeVar("T")


@dataclass(frozen=True)
class Wanted:
    """One deletion request."""

    kind: Literal["node", "edge", "features"]
    nodes: tuple[str, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()

    def send(self, client: LetheClient, number: int) -> Accepted:
        """Send it; a repeated request returns the same id."""
        return client.request_deletion(
            self.nodes, kind=self.kind, edges=self.edges, reference=f"DSR-{number}", idempotency_key=f"wanted-{number}"
        )


@dataclass(frozen=True)
class People:
    """A graph, a LETHE_HOME that serves an untouched model of it, and the deletions."""

    graph: Graph
    template: Path
    wanted: tuple[Wanted, ...]

    @classmethod
    def of(cls, graph: Graph, template: Path) -> "People":
        """Build twelve requests without overlap; the first loses a direction."""
        ids = graph.node_ids
        taken = {7, *range(20)}
        rows, columns = graph.adjacency.nonzero()
        edges = [(ids[i], ids[j]) for i, j in zip(rows, columns, strict=True) if taken.isdisjoint((i, j))]
        node_requests = [Wanted("node", (ids[7],))]
        node_requests += [Wanted("node", (ids[row],)) for row in range(5)]
        node_requests += [Wanted("node", tuple(ids[8:12])), Wanted("node", tuple(ids[12:14]))]
        others = [Wanted("features", (ids[14],)), Wanted("features", (ids[15], ids[16]))]
        others += [Wanted("edge", edges=(edges[0],)), Wanted("edge", edges=(edges[-1],))]
        return cls(graph, template, tuple(request for pair in _shuffled(node_requests, others) for request in pair))

    @property
    def deleted(self) -> list[str]:
        """The nodes deleted at the end."""
        return [node for one in self.wanted if one.kind == "node" for node in one.nodes]

    @property
    def featureless(self) -> list[str]:
        """The nodes without features at the end."""
        return [node for one in self.wanted if one.kind == "features" for node in one.nodes]

    def home(self, folder: Path) -> Path:
        """Copy the template; the private Postgres' files keep their owner."""
        return copied_home(self.template, folder)


def copied_home(template: Path, folder: Path) -> Path:
    """Copy a LETHE_HOME so that it starts beside its original; they share only the log's key."""
    subprocess.run(["cp", "-a", template, folder], check=True)
    # A home that was never started has none.
    (folder / "run" / "home").unlink(missing_ok=True)
    return folder


def _shuffled(nodes: list[Wanted], others: list[Wanted]) -> Iterator[list[Wanted]]:
    """Yield two of the nodes and one of the others, in turn."""
    for number, other in enumerate(others):
        yield [*nodes[2 * number : 2 * number + 2], other]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The final model: W (blocks, d, C) and the probabilities (n, C) of its live nodes."""

    weights: NDArray[np.float64]
    probabilities: NDArray[np.float64]


class Run:
    """One Lethe that receives all the deletions, across all faults."""

    def __init__(self, people: People, lethe: DoomedLethe, seed: int) -> None:
        self.people = people
        self.lethe = lethe
        self.accepted: dict[int, Accepted] = {}
        self._rng = random.Random(seed)
        self._deadline = time.monotonic() + _PATIENCE_S

    def complete(self, between: Callable[["Run"], None] = lambda run: None) -> Outcome:
        """Request all deletions, a few at a time, wait until each is completed, and check all conditions.

        Calls `between` after each accepted request.
        """
        self.lethe.launch_until_ready()
        waiting: list[str] = []
        for number, wanted in enumerate(self.people.wanted):
            self.accepted[number] = self.persist(partial(wanted.send, number=number))
            waiting.append(self.accepted[number].id)
            between(self)
            if self.lethe.faults and self._rng.random() < 0.6:
                self._await(waiting)
                waiting = []
        self._await([one.id for one in self.accepted.values()])
        self._await_repairs()
        assert self.lethe.faults == []
        return self._checked()

    @property
    def model_name(self) -> str:
        """The name of the model."""
        return str(figures_of(self.lethe.model)["name"])

    def _await(self, requests: Sequence[str]) -> None:
        for request in requests:
            self.until(partial(self._is_completed, request))
        if self.lethe.faults and self.lethe.faults[0].cause is Cause.REPAIR:
            self._await_repairs()

    def _await_repairs(self) -> None:
        for one in self.accepted.values():
            self.until(partial(self._is_repaired, one.id))

    def _is_completed(self, request: str, client: LetheClient) -> bool:
        deletion = client.deletion(request)
        assert deletion.status in {"queued", "applied", "completed"}, deletion
        return deletion.status == "completed"

    def _is_repaired(self, request: str, client: LetheClient) -> bool:
        return client.deletion(request).repair != "pending"

    def until(self, condition: Callable[[LetheClient], bool]) -> None:
        """Wait for a condition, across outages and restarts."""
        while not self.persist(condition):
            self._look_later()

    def _look_later(self) -> None:
        # The next look restarts processes that have died meanwhile.
        with contextlib.suppress(Died):
            self.lethe.look_later()

    def persist(self, call: Callable[[LetheClient], T]) -> T:
        """Return the answer to a call, retried across outages and restarts."""
        while True:
            assert time.monotonic() < self._deadline, f"no end in {_PATIENCE_S:.0f} s:\n{self.lethe.log()}"
            try:
                with self.lethe.client() as client:
                    return call(client)
            except (Died, ServerUnreachable, Unavailable):
                self.lethe.revive()
            except ProblemError as error:
                if error.status != 503:
                    raise
                self._look_later()

    def _checked(self) -> Outcome:
        people, lethe = self.people, self.lethe
        lethe.assert_none_failed()
        # A repair that was held up writes its coefficients after the requests are completed.
        self.until(lambda _: keys_left(lethe.home) == 0 and Served(lethe.model).is_tidy())
        asyncio.run(assert_each_happened_once(people, private_database(lethe)))
        outcome = self.persist(lambda client: outcome_of(people, lethe.model, client))
        assert leftovers(people, lethe.home) == set()
        return outcome


def outcome_of(
    people: People,
    model: Path,
    client: LetheClient,
    *,
    gone: Collection[str] | None = None,
) -> Outcome:
    """Return the final model after all requests are completed, and check that its folder contains nothing else.

    `gone` are the deleted nodes; None means all that the requests name.
    """
    assert Served(model).is_tidy()
    unfinished = {path.name for path in model.rglob("*") if path.name.startswith((".", "erasing"))}
    # A checkpoint is written whenever the process is idle.
    assert unfinished <= {f".{gram_checkpoint.FILE}", ".gitignore"}
    answer = client.predict_many(people.graph.node_ids)
    assert set(answer.deleted) == set(people.deleted if gone is None else gone)
    assert not answer.unknown
    names = people.graph.class_names
    table = {one.node: [one.probabilities[name] for name in names] for one in answer.predictions}
    live = [table[node] for node in people.graph.node_ids if node in table]
    return Outcome(weights_on_disk(model), np.array(live))


async def assert_each_happened_once(people: People, database_url: str) -> None:
    """Check that each request is completed in one batch, with one event of each kind and a log leaf for each.

    Each import and each recovery has its own leaf.
    """
    found = await facts(database_url)
    count, targets = len(people.wanted), sum(len(one.nodes) + len(one.edges) for one in people.wanted)
    assert found["requests"] == [("completed", count, targets)]
    events = {kind: (times, requests) for kind, times, requests in found["events"]}
    repaired, once = events.pop("repaired", (0, 0))
    assert repaired == once <= count
    [(others, unfinished)] = found["others"]
    assert sum(times for kind in ("imported", "recovered") for times, _ in [events.pop(kind, (0, 0))]) == others
    assert unfinished == 0
    assert events == {"applied": (count, count), "completed": (count, count)}
    assert found["batches"] == [(len(people.deleted), count, 0)]
    assert found["secrets"] == [(0, 0)]
    await assert_log_is_whole(database_url, 2 * count + repaired + others)


def keys_left(home: Path) -> int:
    """Count the keys of requests."""
    files = [file.read_bytes()[SLOT_BYTES:] for file in (home / "keys" / "requests").iterdir()]
    return sum(any(slots[place : place + SLOT_BYTES]) for slots in files for place in range(0, len(slots), SLOT_BYTES))


def leftovers(people: People, home: Path) -> set[tuple[str, str]]:
    """Return the files of a home, including its servers', with a trace of deleted data, and the kind of trace."""
    sought = {(what, trace) for node in people.deleted for what, trace in traces(people.graph, node).items()}
    for node in people.featureless:
        sought |= {(what, trace) for what, trace in traces(people.graph, node).items() if "features" in what}
    longest = max(len(trace) for _, trace in sought)
    found: set[tuple[str, str]] = set()
    for file in home.rglob("*"):
        # A running Postgres removes its own files meanwhile.
        try:
            if not file.is_file() or _is_untouched(file, people.template / file.relative_to(home)):
                continue
            content = file.read_bytes()
        except FileNotFoundError:
            continue
        # Most of a write-ahead log is trailing zeros. Searching them is unnecessary: a trace may end in zeros, but
        # never consists of zeros alone.
        content = content.rstrip(b"\0") + bytes(longest)
        found |= {(str(file.relative_to(home)), what) for what, trace in sought if trace in content}
    return found


def _is_untouched(file: Path, original: Path) -> bool:
    """Whether a private server's file is as before the first request; the model's files are always read."""
    if not {"postgres", "valkey"} & set(file.parts) or not original.exists():
        return False
    now, then = file.stat(), original.stat()
    return (now.st_mtime_ns, now.st_size) == (then.st_mtime_ns, then.st_size)


async def assert_log_is_whole(database_url: str, events: int) -> None:
    """Check that each event has its leaf, in order, and that every checkpoint covers the tree that begins with them.

    The weights in the leaves must follow from one another.
    """
    connection = await asyncpg.connect(database_url)
    try:
        leaves = await connection.fetch("SELECT index, event_id, data, hash, root FROM leaves ORDER BY index")
        assert [row["index"] for row in leaves] == list(range(events))
        assert len({row["event_id"] for row in leaves}) == events
        assert await connection.fetchval("SELECT count(*) FROM events") == events
        hashes = [leaf_hash(row["data"].encode()) for row in leaves]
        assert hashes == [row["hash"] for row in leaves]
        for note in await connection.fetch("SELECT note FROM checkpoints"):
            signed = read(note["note"])
            assert signed.root == root(hashes[: signed.size])
    finally:
        await connection.close()
    await assert_weights_follow(database_url)


async def assert_weights_follow(database_url: str) -> None:
    """Check that the weights in the leaves of the log follow from one another."""
    chains = WeightsChains()
    leaves = await query(database_url, "SELECT index, data FROM leaves ORDER BY index")
    assert leaves
    assert [found for index, data in leaves for found in chains.take(index, json.loads(data))] == []


def assert_same(outcome: Outcome, reference: Outcome, people: People, *, repaired: bool) -> None:
    """Check that weights and predictions of two runs agree: to 1e-9, or to the tolerance of two repairs."""
    scale = float(np.linalg.norm(reference.weights))
    distance = float(np.linalg.norm(outcome.weights - reference.weights))
    difference = float(np.abs(outcome.probabilities - reference.probabilities).max())
    if not repaired:
        assert distance <= 1e-9 * scale
        assert difference <= 1e-9
        return
    assert distance <= REPAIR_TOLERANCE * scale
    # Each logit is a row of P^2 X times W, the softmax moves no more than its logits, and |P| <= 1.
    assert isinstance(people.graph.features, np.ndarray)
    assert difference <= REPAIR_TOLERANCE * scale * np.linalg.norm(people.graph.features, 2) + 1e-9


class Runs:
    """Runs of the same deletions, each in its own home, which is removed afterwards."""

    def __init__(self, people: People, preloaded: Preloaded, folder: Path) -> None:
        self.people = people
        self._preloaded = preloaded
        self._folder = folder
        self._made = 0
        self._references: dict[str, Outcome] = {}

    def uninterrupted(self, repair: str) -> Outcome:
        """Return the result of a run without faults, once for each repair policy."""
        if repair not in self._references:
            self._references[repair] = self.outcome([], repair=repair)
        return self._references[repair]

    def outcome(
        self,
        faults: Sequence[Fault],
        *,
        repair: str,
        repair_budget: float = 5.0,
        lease_ttl_s: float = 1.0,
        api_workers: int = 1,
        workers: int = 1,
        seed: int = 0,
        between: Callable[[Run], None] = lambda run: None,
        around: Callable[[Run], AbstractContextManager[None]] = lambda run: nullcontext(),
    ) -> Outcome:
        """Return the result of a run with `faults`; `between` runs after each request, and `around` wraps the whole
        run.
        """
        home = self.people.home(self._folder / f"home-{self._made}")
        self._made += 1
        settings: dict[str, Any] = {"repair": repair, "repair_budget": repair_budget, "lease_ttl_s": lease_ttl_s}
        settings |= {"api_workers": api_workers, "workers": workers, "workers_port": free_port(), "max_wait_ms": 5}
        lethe = DoomedLethe(self._preloaded, home, faults, **settings)
        try:
            run = Run(self.people, lethe, seed)
            with around(run):
                outcome = run.complete(between)
            lethe.kill(with_servers=True)
        finally:
            lethe.give_up()
        shutil.rmtree(home)
        return outcome

    def check(self, faults: Sequence[Fault], *, repair: str = "never", **how: Any) -> None:
        """Check that a run with `faults` has the same result as one without."""
        repaired = repair == "always"
        assert_same(
            self.outcome(faults, repair=repair, **how), self.uninterrupted(repair), self.people, repaired=repaired
        )


def template_of(preloaded: Preloaded, model: Path, home: Path) -> Path:
    """Return a LETHE_HOME that has served `model` once and was stopped cleanly."""
    home.mkdir(mode=0o700)
    copied(model, home / "model")
    lethe = DoomedLethe(preloaded, home, repair="never")
    try:
        lethe.launch_until_ready()
        assert lethe.stop().status == 0
    finally:
        lethe.give_up()
    return home
