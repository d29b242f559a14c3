"""The workers that compute with the unlearner: met at the start of each session, and let go at its end."""

import contextlib
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import msgspec
import structlog
import torch

from projector.errors import WorkersLost
from projector.parallel.distributed import Distributed
from projector.parallel.meeting import Meeting
from projector.parallel.workers import ALONE, Workers
from service.worker.meeting_place import MeetingPlace, use_interface_of
from service.worker.shared_graph import Task

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
