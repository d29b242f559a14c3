"""The workers that compute with the unlearner: where they meet, the graph they share, and the two sides of the team."""

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import msgspec
import numpy as np
import psutil
import structlog
import torch
from numpy.typing import NDArray

# All that workers carry out together has to be known here by its name.
import projector.forgetting.update  # noqa: F401
from model_store.store import Store
from model_store.versions import VersionRef
from projector.errors import ProjectorError, WorkersLost
from projector.forgetting.live_graph import LiveGraph
from projector.graph.graph import Graph
from projector.parallel.distributed import Distributed
from projector.parallel.meeting import Meeting, Visit
from projector.parallel.workers import ALONE, Workers
from service.settings import Settings
from service.unlearner.placement import chosen_device


@dataclass(frozen=True)
class MeetingPlace:
    """What all workers of one model are told."""

    address: str
    port: int
    #: After which one that does not answer is lost (seconds).
    timeout_s: float

    @classmethod
    def of(cls, settings: Settings) -> "MeetingPlace":
        """As the settings say; a worker is missed as soon as a lease is."""
        return cls(settings.workers_address, settings.workers_port, settings.lease_ttl_s)


def use_interface_of(address: str) -> None:
    """Has gloo and nccl listen, in this process, on the interface of one of its own addresses.

    What the environment says of it already stays. gloo takes the first address of an interface.
    """
    found = next((name for name, own in psutil.net_if_addrs().items() if any(_is(one.address, address) for one in own)))
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, found)


def _is(one: str, wanted: str) -> bool:
    """Whether an interface that has the address `one` has the address `wanted`, as loopback has all of its network."""
    try:
        found, sought = ip_address(one.partition("%")[0]), ip_address(wanted)
    except ValueError:
        return False  # of hardware
    return found == sought or (found.version == sought.version and found.is_loopback and sought.is_loopback)


class Task(msgspec.Struct, frozen=True):
    """What a worker is to make ready."""

    #: Of the committed version, and the digest of its manifest.
    folder: str
    digest: str
    #: Edges, by the rows of their ends, that the version lacks and that may still be on the disk.
    deleted_edges: list[tuple[int, int]]


def digest_of(version: str, graph: Graph) -> str:
    """By which workers know that they hold the same: a version, by the digest of its manifest, and its graph."""
    found = hashlib.sha256(version.encode())
    for array in _arrays(graph):
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def load(model: Path, task: Task, device: torch.device) -> tuple[LiveGraph, str]:
    """The graph of a task, made from the model's folder, which is only read, and its digest.

    Raises NotAStore, StoreDamaged, and OSError.
    """
    store = Store.open(model)
    version = store.read_version(VersionRef.parse(task.folder), digest=task.digest)
    graph = store.load_graph().without_edges(np.array(task.deleted_edges, dtype=np.int64).reshape(-1, 2))
    manifest = store.manifest
    live_graph = LiveGraph.of(
        graph, manifest.spec, manifest.diffusion, live=version.live, featured=version.featured, device=device
    )
    return live_graph, digest_of(task.digest, graph)


def _arrays(graph: Graph) -> Iterator[NDArray[np.generic]]:
    yield from (graph.adjacency.indptr, graph.adjacency.indices)
    if isinstance(graph.features, np.ndarray):
        yield graph.features
    else:
        yield from (graph.features.indptr, graph.features.indices, graph.features.data)
    yield from (graph.labels, graph.train_mask)


#: Seconds between two looks at who is ready.
_LOOK_S = 0.05
#: Times per timeout that the others are told that the unlearner is there.
_BEATS = 3
#: Sessions in a row that workers may end before a batch is applied; the next one goes without them.
_MOST_LOSSES = 3
#: A session that not all have joined goes on for at least the time that its start took before it ends for the sake of
#: those that came later; for twice that after each further one in a row, at most so many doublings: what cannot take
#: part must not keep the others from their work.
_MOST_DOUBLINGS = 5


class Team:
    """Of one unlearner, through all its sessions. Everything but `count` and `check` blocks."""

    def __init__(
        self, place: MeetingPlace, wanted: int, device: torch.device, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`wanted` processes, this one among them; with 1 nobody is met, and nothing listens."""
        self.wanted = wanted
        #: How many compute together at present.
        self.count = 1
        self._place = place
        self._device = device
        self._clock = clock
        self._meeting: Meeting | None = None
        #: What ends with the session.
        self._held = ExitStack()
        #: What a beat has found.
        self._lost: WorkersLost | None = None
        self._losses = 0
        #: Sessions that not all have joined, in a row but for those that began after losses.
        self._incomplete = 0
        #: By the clock: when the session began, and before which none begins for the sake of those who came.
        self._began = self._rests_until = 0.0
        self._log = structlog.get_logger(__name__)

    def begin(self, task: Task) -> None:
        """Has others make the model ready that this process is about to load."""
        self._open()
        if self._meeting is not None:
            self._meeting.begin(msgspec.json.encode(task).decode())

    def gather(self, digest: str, share: Callable[[Workers], None]) -> None:
        """Waits for the others, no longer than they may be silent or this process took to load, and begins with them.

        With whoever has the model of that `digest` by then, down to nobody. `share` gives this process' model to them
        all. Raises WorkersLost when one is lost meanwhile.
        """
        meeting = self._meeting
        if meeting is None:
            return
        most = 0 if self._losses >= _MOST_LOSSES else self.wanted - 1
        until = self._clock() + max(self._place.timeout_s, self._clock() - self._began)
        while len(ready := meeting.ready()) < most and self._clock() < until:
            time.sleep(_LOOK_S)
        differing = sum(theirs != digest for theirs in ready.values())
        if differing:
            self._log.error("workers.differ", workers=differing, remedy="Give all the same folder of the model.")
        members = meeting.settle(digest, most)
        workers = self._formed(meeting, members)
        took_s = self._clock() - self._began
        rest_s = max(self._place.timeout_s, took_s) * 2 ** min(self._incomplete, _MOST_DOUBLINGS)
        self._rests_until = self._clock() + rest_s
        if workers.count < self.wanted:
            self._incomplete += 1
        elif not self._losses:
            self._incomplete = 0
        self._log.info("workers.gathered", workers=workers.count, wanted=self.wanted)
        if isinstance(workers, Distributed):
            share(workers)
            self._keep(workers)
            self.count = workers.count

    def check(self) -> None:
        """Raises WorkersLost once one of them is known to be."""
        if self._lost is not None:
            raise self._lost

    def late(self) -> bool:
        """Whether there are others by now who could take part, and a session may begin anew for it."""
        if self.count == self.wanted or self._clock() < self._rests_until:
            return False
        if self._meeting is None:
            self._open()
        if self._meeting is None or self._meeting.came < self.count:
            return False
        # After too many losses there is one try, until they have applied a batch.
        self._losses = min(self._losses, _MOST_LOSSES - 1)
        return True

    def lost(self) -> None:
        """A session has ended because one of them was lost."""
        self._losses += 1

    def worked(self) -> None:
        """A batch was applied, which says nothing of others where this process did it alone."""
        if self.count > 1:
            self._losses = 0

    def close(self) -> None:
        """Ends what the session had; the others wait for the next one."""
        self.count = 1
        self._held.close()
        self._meeting = self._lost = None

    def _open(self) -> None:
        self._began = self._clock()
        if self.wanted == 1 or self._meeting is not None:
            return
        place = self._place
        try:
            self._meeting = Meeting(place.address, place.port, place.timeout_s)
        except OSError as error:
            self._rests_until = self._began + place.timeout_s
            self._log.error(
                "workers.not_met", address=place.address, port=place.port, reason=error.strerror or str(error),
                remedy="Correct --workers-address or --workers-port. Until then the unlearner works alone.",
            )  # fmt: skip

    def _formed(self, meeting: Meeting, members: list[int]) -> Workers:
        if not members:
            return ALONE
        use_interface_of(meeting.address)
        try:
            return self._held.enter_context(meeting.group(members, self._device))
        except WorkersLost as lost:
            self._log.warning("workers.lost", reason=lost.detail, remedy=lost.remedy)
            return ALONE

    def _keep(self, workers: Distributed) -> None:
        """Tells the others, from now on, that this process is there and what it holds no longer."""
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(self._place.timeout_s / _BEATS):
                try:
                    workers.beat()
                except WorkersLost as lost:
                    self._lost = lost
                    return

        def end() -> None:
            stop.set()
            beating.join()
            # Who is lost already finds the connection closed.
            with contextlib.suppress(WorkersLost):
                workers.end()

        beating = threading.Thread(target=beat, name="workers", daemon=True)
        beating.start()
        self._held.callback(end)


#: Seconds until it looks again for the unlearner.
_AGAIN_S = 0.2

_log = structlog.get_logger(__name__)


def follow(settings: Settings, notify_ready: Callable[[], None]) -> None:
    """Takes part in one session of the unlearner after another, until a signal ends it.

    Raises WorkersDiffer and what `load` raises: the folder of the model is not that of the unlearner's, or damaged.
    """
    place, device = MeetingPlace.of(settings), chosen_device(settings.device)
    if device.type == "cuda":
        # As torchrun tells it, and the supervisor: which of this host's workers this is.
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    notify_ready()
    _log.info("worker.waiting", address=place.address, port=place.port)
    while True:
        try:
            _take_part(place, settings.model_dir, device)
        except WorkersLost as lost:
            _log.warning("workers.lost", reason=lost.detail)
        time.sleep(_AGAIN_S)


def _take_part(place: MeetingPlace, model: Path, device: torch.device) -> None:
    try:
        visit = Visit(place.address, place.port, place.timeout_s)
    except OSError:
        return  # the unlearner is not there, or not yet
    task = msgspec.json.decode(visit.task(), type=Task)
    _log.info("model.loading", version=task.folder)
    rank, graph = None, None
    try:
        graph, digest = load(model, task, device)
    except (ProjectorError, OSError):
        if not visit.settled:
            raise
        # The unlearner has gone on without this one, and changed what it read.
    else:
        rank = visit.take_part(digest)
    if graph is None or rank is None:
        # Outside the clause above, whose error holds what was read until then.
        del graph
        visit.stay()
        return
    use_interface_of(visit.address)
    with visit.group(rank, device) as workers:
        graph.shared_by(workers)
        # From here on `workers` says how long anything of it is held.
        del graph
        _log.info("worker.following", worker=rank, workers=workers.count)
        workers.follow()
