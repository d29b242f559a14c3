"""Clients that send mixed requests at the same time, through all outages, and note how each was answered."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from lethe_client import LetheClient, ProblemError, ServerUnreachable
from lethe_client.results import Deletion
from tests.support.kills.mixed.bookkeeping import Asked
from tests.support.kills.mixed.drawn_requests import Drawing

#: Longest wait for any condition (seconds): several restarts on a busy machine.
PATIENCE_S = 300.0
ENDED = frozenset({"completed", "cancelled", "failed"})
#: Refusals of requests that do not fit the graph at that moment; a key that may only write gets fewer of them.
REFUSALS = frozenset(
    {
        *("known-nodes", "known-edges", "deleted-nodes", "unknown-nodes", "unknown-edges", "unknown-targets"),
        *("too-many-attempts",),
    }
)

T = TypeVar("T")


class Stopped(Exception):
    """Another client, or Lethe, has failed."""


@dataclass
class Sent:
    """A request that was accepted."""

    asked: Asked
    id: str
    key: str


class Through:
    """Calls Lethe through outages and restarts."""

    def __init__(self, url: str, stop: threading.Event) -> None:
        self._url = url
        self._stop = stop

    def call(self, key: str, call: Callable[[LetheClient], T]) -> T:
        """Return the answer to a call with an API key."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            if self._stop.is_set():
                raise Stopped
            assert time.monotonic() < deadline, f"no answer in {PATIENCE_S:.0f} s"
            try:
                with LetheClient(self._url, key, timeout_s=30.0, retries=0) as client:
                    return call(client)
            except ServerUnreachable:
                self._stop.wait(0.1)
            except ProblemError as error:
                if error.status != 503:
                    raise
                self._stop.wait(0.1)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"no end in {PATIENCE_S:.0f} s"
            self._stop.wait(0.25)


class Client(threading.Thread):
    """One client with a key of its own; `reader` is a key that may read the states of all requests."""

    def __init__(
        self,
        number: int,
        drawing: Drawing,
        through: Through,
        keys: tuple[str, str],
        quota: int,
        goes_on: Callable[[], bool],
    ) -> None:
        """It sends `quota` requests, and more of them as long as `goes_on`, up to three times as many."""
        super().__init__(name=f"client-{number}")
        self._number = number
        self._drawing = drawing
        self._through = through
        self._key, self._reader = keys
        self._quota = quota
        self._goes_on = goes_on
        self._tries = 0
        self.sent: list[Sent] = []
        self.refused: dict[str, int] = {}
        self.repeated = 0
        #: What ended it early.
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while self._tries < self._quota or (self._goes_on() and self._tries < 3 * self._quota):
                round_of = [one for _ in range(self._drawing.between(1, 4)) for one in self._drawing()]
                accepted = [sent for one in round_of if (sent := self._send(one)) is not None]
                if self._drawing.chance(0.6):
                    self._wait(accepted)
        except BaseException as error:  # noqa: BLE001 - reported by whoever joins this thread
            self.error = error

    def state(self, sent: Sent) -> Deletion:
        """Return the state of a request."""
        return self._through.call(self._reader, lambda client: client.deletion(sent.id))

    def _send(self, one: Asked) -> Sent | None:
        self._tries += 1
        key = f"{self.name}-{self._tries}"
        classes = self._drawing.classes
        try:
            accepted = self._through.call(self._key, lambda client: one.send(client, key, classes))
        except ProblemError as error:
            slug = error.type.rpartition(":")[2]
            if slug not in REFUSALS:
                raise
            self.refused[slug] = self.refused.get(slug, 0) + 1
            return None
        sent = Sent(one, accepted.id, key)
        self.sent.append(sent)
        if self._drawing.chance(0.08):
            self._cancel(sent)
        if self._drawing.chance(0.1):
            self._repeat(self.sent[-self._drawing.between(1, min(len(self.sent), 20))])
        return sent

    def _cancel(self, sent: Sent) -> None:
        """Cancel a request, unless it is too late; its state shows which."""
        try:
            self._through.call(self._key, lambda client: client.cancel(sent.id, sent.asked.resource))  # type: ignore[arg-type]
        except ProblemError as error:
            # Too late, or done by a call whose answer was lost.
            if error.status != 409:
                raise

    def _repeat(self, sent: Sent) -> None:
        """Send a request again with its idempotency key: it stays one."""
        classes = self._drawing.classes
        again = self._through.call(self._key, lambda client: sent.asked.send(client, sent.key, classes))
        assert again.id == sent.id
        self.repeated += 1

    def _wait(self, accepted: list[Sent]) -> None:
        for sent in accepted:
            self._through.until(lambda sent=sent: self.state(sent).status in ENDED)  # type: ignore[misc]
            if sent.asked.kind == "node" and self.state(sent).status == "completed":
                self._drawing.left += [node for node in sent.asked.nodes if self._drawing.owns(node)]
