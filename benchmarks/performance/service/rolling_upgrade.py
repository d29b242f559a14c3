"""Rolling upgrades under load: `serve --replace` takes over from a running `serve` of its home, again and again.

Four kinds of clients run meanwhile: one that predicts over a connection that it keeps, one that opens a connection for
each prediction, one that pauses for up to four seconds on an open connection, and one that requests deletions. The next
upgrade begins when the previous Lethe has ended. At the end every accepted request must be completed. Exits with 1 if a
prediction failed, a request was refused or lost, or a replaced Lethe did not end with status 0.

    python -m benchmarks.performance.service.rolling_upgrade [--upgrades 20] [--dataset cora] [--pause 0.2]
"""

import argparse
import os
import random
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import torch

from benchmarks.device import device_name
from benchmarks.performance.service.lethe_process import HEADERS, LetheProcess

#: Maximum pause of the client that pauses (seconds): uvicorn closes an idle connection after 5 s.
_IDLE_S = 4.0
#: Maximum wait for the end of a replaced Lethe, and for the accepted requests at the end (seconds).
_PATIENCE_S = 300.0


@dataclass
class Seen:
    """Results of one client."""

    answered: int = 0
    slowest_s: float = 0.0
    failures: list[str] = field(default_factory=list)
    #: Ids of accepted requests.
    accepted: list[str] = field(default_factory=list)


class Client(threading.Thread):
    """Sends one request after another, and repeats none."""

    def __init__(self, url: str, path: str, *, keeps: bool = True, pause_s: float = 0.0, seed: int = 0) -> None:
        """Predict `path`; a client that `keeps` no connection opens one for each request."""
        super().__init__(daemon=True)
        self.seen = Seen()
        self._http = httpx2.Client(
            base_url=url,
            headers=HEADERS,
            timeout=60.0,
            limits=httpx2.Limits(max_keepalive_connections=1 if keeps else 0),
        )
        self._path = path
        self._pause_s = pause_s
        self._rng = random.Random(seed)
        self._over = threading.Event()

    def run(self) -> None:
        """Send until `finish`."""
        with self._http:
            while not self._over.wait(self._rng.uniform(0.0, self._pause_s)):
                started = time.monotonic()
                try:
                    failure = self.send(self._http)
                except httpx2.HTTPError as error:
                    failure = repr(error)
                self.seen.slowest_s = max(self.seen.slowest_s, time.monotonic() - started)
                if failure:
                    self.seen.failures.append(failure)
                else:
                    self.seen.answered += 1

    def finish(self) -> Seen:
        """Stop, and return what was seen."""
        if not self.is_alive():
            self.seen.failures.append("this client ended early")
        self._over.set()
        self.join()
        return self.seen

    def send(self, http: httpx2.Client) -> str:
        """Send a request; return why it failed, or an empty text."""
        got = http.get(self._path)
        return "" if got.status_code == 200 else f"{got.status_code}: {got.text}"


class Deleting(Client):
    """Requests the deletion of one node after another."""

    def __init__(self, url: str, nodes: list[str], pause_s: float) -> None:
        super().__init__(url, "/deletions", pause_s=2 * pause_s)
        self._nodes = iter(nodes)

    def send(self, http: httpx2.Client) -> str:
        """Request the next deletion."""
        node = next(self._nodes, None)
        if node is None:
            self._over.set()
            return "no nodes are left: use a larger dataset, or a longer --pause"
        got = http.post("/deletions", json={"kind": "node", "nodes": [node]})
        if got.status_code != 202:
            return f"{got.status_code}: {got.text}"
        self.seen.accepted.append(got.json()["id"])
        return ""


def lost(service: LetheProcess, accepted: list[str]) -> int:
    """Return how many of the accepted requests are not completed in time."""
    until, left = time.monotonic() + _PATIENCE_S, set(accepted)
    with service.client() as client:
        while left and time.monotonic() < until:
            left -= {one.id for one in client.deletions(status="completed")}
            time.sleep(0.2)
    return len(left)


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrades", type=int, default=20)
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--pause", type=float, default=0.2, help="mean seconds between two requested deletions")
    options = parser.parse_args()
    settings = {"LETHE_DATASET": options.dataset, "LETHE_REPAIR": "never", "LETHE_API_WORKERS": "2"}
    with tempfile.TemporaryDirectory() as temporary:
        service = LetheProcess(Path(temporary) / "home", settings)
        try:
            with service.client() as http:
                nodes = [str(number) for number in range(http.model().live_nodes)]
            # The first is predicted and never deleted.
            predicted, doomed = nodes[0], random.Random(0).sample(nodes[1:], len(nodes) - 1)
            path = f"/predict/{predicted}"
            predicting = [
                Client(service.url, path),
                Client(service.url, path, keeps=False),
                Client(service.url, path, pause_s=_IDLE_S),
            ]
            deleting = Deleting(service.url, doomed, options.pause)
            for client in (*predicting, deleting):
                client.start()
            times, statuses = list[float](), list[int]()
            for number in range(options.upgrades):
                old, started = service, time.monotonic()
                service = LetheProcess(old.home, settings, "--replace")
                times.append(time.monotonic() - started)
                statuses.append(old.process.wait(_PATIENCE_S))
                print(f"  upgrade {number + 1}: ready after {times[-1]:.1f} s", flush=True)
            predictions, requests = [client.finish() for client in predicting], deleting.finish()
            missing = lost(service, requests.accepted)
        finally:
            status = service.stop()
    failures = [failure for seen in (*predictions, requests) for failure in seen.failures]
    print(
        f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[1]:.1f}, "
        f"{options.dataset}: {options.upgrades} upgrades, ready after {min(times):.1f} to {max(times):.1f} s\n"
        f"predictions: {sum(seen.answered for seen in predictions):,} answered, "
        f"{sum(len(seen.failures) for seen in predictions)} failed, "
        f"the slowest after {max(seen.slowest_s for seen in predictions):.2f} s\n"
        f"requests: {len(requests.accepted):,} accepted, {len(requests.failures)} refused, {missing} lost, "
        f"the slowest accepted after {requests.slowest_s:.2f} s\n"
        f"replaced with another status than 0: {sum(map(bool, statuses))}; the last stopped with status {status}"
    )
    for failure in failures[:10]:
        print(f"  {failure[:200]}")
    if failures or missing or any(statuses) or status:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
