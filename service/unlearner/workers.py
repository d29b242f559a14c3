"""The workers that compute with the unlearner: their meeting place, the shared graph, and both sides of the team."""

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

# Every operation that workers run together must be imported here, so that they know its name.
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
    """Connection settings of all workers of one model."""

    address: str
    port: int
    #: Seconds without an answer after which a worker is lost.
    timeout_s: float

    @classmethod
    def of(cls, settings: Settings) -> "MeetingPlace":
        """Build from the settings; a worker's timeout is that of the lease."""
        return cls(settings.workers_address, settings.workers_port, settings.lease_ttl_s)


def use_interface_of(address: str) -> None:
    """Make gloo and nccl in this process listen on the interface that owns `address`.

    Variables already set in the environment stay. gloo takes the first address of an interface.
    """
    found = next((name for name, own in psutil.net_if_addrs().items() if any(_is(one.address, address) for one in own)))
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, found)


def _is(one: str, wanted: str) -> bool:
    """Whether an interface with address `one` also has `wanted`; loopback has its whole network."""
    try:
        found, sought = ip_address(one.partition("%")[0]), ip_address(wanted)
    except ValueError:
        return False  # a hardware address
    return found == sought or (found.version == sought.version and found.is_loopback and sought.is_loopback)


class Task(msgspec.Struct, frozen=True):
    """The version that a worker must load."""

    #: Folder of the committed version, and the digest of its manifest.
    folder: str
    digest: str
    #: Edges, by endpoint rows, that the version deleted and that may still be on the disk.
    deleted_edges: list[tuple[int, int]]


def digest_of(version: str, graph: Graph) -> str:
    """Hash the digest of a version's manifest and its graph, so that workers can compare what they hold."""
    found = hashlib.sha256(version.encode())
    for array in _arrays(graph):
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def load(model: Path, task: Task, device: torch.device) -> tuple[LiveGraph, str]:
    """Load the graph of a task from the model's folder, which is only read, and return it with its digest.

    Raises NotAStore, StoreDamaged and OSError.
    """
    store = Store.open(model)
    version = store.read_version(VersionRef.parse(task.folder), digest=task.digest)
    graph = store.load_graph().without_edges(np.array(task.deleted_edges, dtype=np.int64).reshape(-1, 2))
    manifest = store.manifest
    live_graph = LiveGraph.of(
        graph, manifest.spec, manifest.diffusion,
        temperature=manifest.temperature, live=version.live, featured=version.featured, device=device,
    )  # fmt: skip
    return live_graph, digest_of(task.digest, graph)


def _arrays(graph: Graph) -> Iterator[NDArray[np.generic]]:
    yield from (graph.adjacency.indptr, graph.adjacency.indices)
    if graph.weighted:
        yield graph.adjacency.data
    if isinstance(graph.features, np.ndarray):
        yield graph.features
    else:
        yield from (graph.features.indptr, graph.features.indices, graph.features.data)
    yield from (graph.labels, graph.train_mask)
    if graph.values is not None:
        yield graph.values


#: Seconds between two checks for ready workers.
_LOOK_S = 0.05
#: Heartbeats to the other workers per timeout.
_BEATS = 3
#: Consecutive sessions that lost workers may end before a batch is applied; the next one runs without them.
_MOST_LOSSES = 3
#: An incomplete session lasts at least as long as its start took before it restarts for late workers. This time doubles
#: with each further incomplete session in a row, at most this often: workers that cannot join must not keep the others
#: from their work.
_MOST_DOUBLINGS = 5


class Team:
    """The team of one unlearner, across its sessions. Everything except `count` and `check` blocks."""

    def __init__(
        self, place: MeetingPlace, wanted: int, device: torch.device, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Use `wanted` processes, including this one; with 1 there is no meeting, and nothing listens."""
        self.wanted = wanted
        #: Number of processes computing together now.
        self.count = 1
        self._place = place
        self._device = device
        self._clock = clock
        self._meeting: Meeting | None = None
        #: Closed at the end of the session.
        self._held = ExitStack()
        #: The loss that a heartbeat found.
        self._lost: WorkersLost | None = None
        self._losses = 0
        #: Consecutive sessions that some workers missed, except those that began after losses.
        self._incomplete = 0
        #: By the clock: start of the session, and earliest restart for late workers.
        self._began = self._rests_until = 0.0
        self._log = structlog.get_logger(__name__)

    def begin(self, task: Task) -> None:
        """Make the others load the model that this process is about to load."""
        self._open()
        if self._meeting is not None:
            self._meeting.begin(msgspec.json.encode(task).decode())

    def gather(self, digest: str, share: Callable[[Workers], None]) -> None:
        """Wait for the others, at most for the timeout or this process's loading time if longer, and begin with them.

        Takes the workers that hold the model of that `digest` by then, possibly none. `share` shares this process's
        model with them. Raises WorkersLost if one is lost meanwhile.
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
        """Raise WorkersLost once a worker is known to be lost."""
        if self._lost is not None:
            raise self._lost

    def late(self) -> bool:
        """Whether more workers could join now, and a new session may begin for them."""
        if self.count == self.wanted or self._clock() < self._rests_until:
            return False
        if self._meeting is None:
            self._open()
        if self._meeting is None or self._meeting.came < self.count:
            return False
        # After too many losses, allow one try until they have applied a batch.
        self._losses = min(self._losses, _MOST_LOSSES - 1)
        return True

    def lost(self) -> None:
        """Count a session that ended because a worker was lost."""
        self._losses += 1

    def worked(self) -> None:
        """Record an applied batch; it proves nothing about the others if this process worked alone."""
        if self.count > 1:
            self._losses = 0

    def close(self) -> None:
        """End the session; the others wait for the next one."""
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
        """Send heartbeats to the other workers, which also report what this process no longer holds."""
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
            # A lost worker's connection is already closed.
            with contextlib.suppress(WorkersLost):
                workers.end()

        beating = threading.Thread(target=beat, name="workers", daemon=True)
        beating.start()
        self._held.callback(end)


#: Seconds between two attempts to reach the unlearner.
_AGAIN_S = 0.2

_log = structlog.get_logger(__name__)


def follow(settings: Settings, notify_ready: Callable[[], None]) -> None:
    """Take part in the unlearner's sessions, one after another, until a signal ends the process.

    Raises WorkersDiffer and the errors of `load` if the model's folder differs from the unlearner's or is damaged.
    """
    place, device = MeetingPlace.of(settings), chosen_device(settings.device)
    if device.type == "cuda":
        # LOCAL_RANK, set by torchrun and the supervisor, numbers this host's workers.
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
        return  # the unlearner is absent, or not there yet
    task = msgspec.json.decode(visit.task(), type=Task)
    _log.info("model.loading", version=task.folder)
    rank, graph = None, None
    try:
        graph, digest = load(model, task, device)
    except (ProjectorError, OSError):
        if not visit.settled:
            raise
        # The unlearner continued without this worker and changed the files it was reading.
    else:
        rank = visit.take_part(digest)
    if graph is None or rank is None:
        # Outside the clause above, whose error holds the data read until then.
        del graph
        visit.stay()
        return
    use_interface_of(visit.address)
    with visit.group(rank, device) as workers:
        graph.shared_by(workers)
        # From here on `workers` decides how long any of it is held.
        del graph
        _log.info("worker.following", worker=rank, workers=workers.count)
        workers.follow()
