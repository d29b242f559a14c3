"""A day of a platform, in minutes: people join, leave, are corrected and object while a Lethe predicts them.

A `lethe serve` with its own durable servers starts with a synthetic graph. Then 5,000 people join with edges to those
who are there, 1,000 leave, among them some new, 500 are corrected and 100 object to training: one request each,
in random order, at a steady rate. In the middle a model is imported that was newly trained on the platform's own data.
While it is trained, additions and corrections wait on the platform, since the new model would lack them. Deletions and
objections continue, and `--exclude-deleted` takes them out of it.

The script fails if somebody who left is predicted, if somebody who joined is not, or if a request does not complete. It
prints the time from a request's receipt to `applied` by the size of the graph.

    python -m benchmarks.additions.day [--nodes 20000] [--rate 6] [--out FILE]
    python -m benchmarks.additions.day --small

Other numbers of people change all counts in proportion.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.device import device_name
from benchmarks.performance.service.lethe_process import KEY, LetheProcess
from lethe_client import Correction, LetheClient, NewNode
from model_store.datasets.load import load_dataset
from projector.graph.graph import Graph, feature_rows

_CLIENTS = 8
#: Rows of the table: the requests in order of receipt, in so many parts.
_PARTS = 5
#: One request for so many people who are there in the morning.
_PARTS_OF_NODES = {"join": 4, "leave": 20, "correct": 40, "object": 200}
#: Seconds until a request that was sent is completed, at most.
_PATIENCE_S = 900.0
#: Nodes per request of predictions.
_PAGE = 5_000


@dataclass(frozen=True)
class Size:
    """How many people there are in the morning, and how many do what."""

    nodes: int = 20_000

    @property
    def counts(self) -> dict[str, int]:
        """Number of requests by kind."""
        return {name: self.nodes // part for name, part in _PARTS_OF_NODES.items()}


@dataclass
class Platform:
    """The platform's own data, under a lock: who is there, and what it knows of everybody."""

    graph: Graph
    #: Rows of the graph: there, trained on, and gone for good.
    there: set[int]
    trained: set[int]
    gone: set[int] = field(default_factory=set)
    #: Row -> features that replace those of the graph.
    corrected: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def name(self, row: int) -> str:
        """Return the id of a person."""
        return f"user-{row:06d}"

    def write(self, path: Path) -> Path:
        """Write the data as a dataset to train on."""
        with self.lock:
            rows = np.array(sorted(self.there))
            X = feature_rows(self.graph.features, rows)
            for place, row in enumerate(rows.tolist()):
                if row in self.corrected:
                    X[place] = self.corrected[row]
            labels = np.where(np.isin(rows, sorted(self.trained)), self.graph.labels[rows], -1)
            pairs = self.graph.adjacency[rows][:, rows].nonzero()
        nobody = np.zeros(len(rows), dtype=np.bool_)
        arrays = {"edge_index": np.stack(pairs), "y": labels, "x": X.astype(np.float32)}
        arrays |= {"train_mask": labels >= 0, "val_mask": nobody, "test_mask": nobody}
        np.savez(path, allow_pickle=False, node_ids=np.array([self.name(row) for row in rows.tolist()]), **arrays)
        return path

    def edges_of(self, row: int) -> list[tuple[str, str]]:
        """Return the edges of a person to those who are there."""
        near = self.graph.adjacency[[row]].nonzero()[1].tolist()
        return [(self.name(row), self.name(other)) for other in near if other in self.there]


class Day:
    """The requests of a day, sent at a steady rate by several clients."""

    def __init__(self, url: str, platform: Platform, size: Size, seed: int) -> None:
        self._url, self._platform, self._size = url, platform, size
        self._rng = random.Random(seed)
        self.events = [kind for kind, count in size.counts.items() for _ in range(count)]
        self._rng.shuffle(self.events)
        self._joining = list(range(size.nodes, size.nodes + size.counts["join"]))
        #: What waits while a new model is trained; None otherwise.
        self.waiting: list[str] | None = None
        self.waited = 0
        #: Request -> number of people who were there when it was sent.
        self.sent: dict[str, int] = {}

    def send(self, events: Sequence[str], rate: float) -> float:
        """Send requests at `rate` per second. Returns the seconds that it took."""
        started = time.monotonic()
        with ThreadPoolExecutor(_CLIENTS) as pool:
            results = []
            for number, kind in enumerate(events):
                time.sleep(max(0.0, started + number / rate - time.monotonic()))
                results.append(pool.submit(self._do, kind))
            for each in results:
                each.result()
        return time.monotonic() - started

    def _do(self, kind: str) -> None:
        # Under the lock, so that nobody leaves between a look at the platform and the request.
        with LetheClient(self._url, KEY, timeout_s=60.0) as client, self._platform.lock:
            if self.waiting is not None and kind in ("join", "correct"):
                self.waiting.append(kind)
                return
            request = self._ask(client, kind)
            self.sent[request] = len(self._platform.there)

    def hold(self) -> None:
        """Let additions and corrections wait."""
        self.waiting = []

    def release(self, rate: float) -> None:
        """Send what waits."""
        with self._platform.lock:
            held, self.waiting = self.waiting or [], None
        self.waited = len(held)
        self.send(held, rate)

    def _ask(self, client: LetheClient, kind: str) -> str:
        platform = self._platform
        name = platform.name
        if kind == "join":
            row = self._joining.pop(0)
            label = platform.graph.class_names[platform.graph.labels[row]] if self._rng.random() < 0.6 else None
            features = _row(feature_rows(platform.graph.features, np.array([row]))[0])
            accepted = client.add([NewNode(name(row), features, label)], edges=platform.edges_of(row))
            platform.there.add(row)
            if label is not None:
                platform.trained.add(row)
        elif kind == "leave":
            row = self._rng.choice(sorted(platform.there))
            accepted = client.request_deletion([name(row)])
            platform.there.discard(row)
            platform.trained.discard(row)
            platform.gone.add(row)
        elif kind == "correct":
            row, other = self._rng.choice(sorted(platform.there)), self._rng.randrange(platform.graph.nodes)
            values = feature_rows(platform.graph.features, np.array([other]))[0]
            accepted = client.correct([Correction(name(row), _row(values))])
            platform.corrected[row] = values
        else:
            row = self._rng.choice(sorted(platform.trained))
            accepted = client.request_deletion([name(row)], kind="label")
            platform.trained.discard(row)
        return accepted.id


def _row(values: NDArray[np.float64]) -> Mapping[int, float]:
    return {int(column): float(values[column]) for column in np.flatnonzero(values)}


def lethe(home: Path, *arguments: object) -> None:
    """Run a command of Lethe's, and fail if it does."""
    command = [sys.executable, "-P", "-m", "service.cli", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "LETHE_HOME": str(home)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(map(str, arguments))}: {ended.stderr}")


def settle(service: LetheProcess, requests: Sequence[str]) -> None:
    """Wait until these requests are completed."""
    deadline = time.monotonic() + _PATIENCE_S
    with service.client() as client:
        for request in requests:
            client.wait(request, timeout_s=deadline - time.monotonic())


def import_anew(service: LetheProcess, platform: Platform, day: Day, folder: Path, rate: float) -> float:
    """Train on the platform's data, and import the model. Returns for how many seconds additions waited."""
    started = time.monotonic()
    with platform.lock:
        day.hold()
        asked = list(day.sent)
        dataset = platform.write(folder / "night.npz")
    lethe(service.home, "train", "--dataset", dataset, "--name", "platform", "--out", folder / "night")
    # The import must not overtake what was asked before its data was drawn.
    settle(service, asked)
    lethe(service.home, "model", "import", folder / "night", "--exclude-deleted")
    spent_s = time.monotonic() - started
    day.release(rate)
    return spent_s


def check(service: LetheProcess, platform: Platform) -> None:
    """Fail unless exactly those who are there are predicted."""
    everybody = sorted(platform.there | platform.gone)
    predicted, deleted = set[str](), set[str]()
    with service.client() as client:
        for begin in range(0, len(everybody), _PAGE):
            answer = client.predict_many([platform.name(row) for row in everybody[begin : begin + _PAGE]])
            predicted |= {one.node for one in answer.predictions}
            deleted |= set(answer.deleted)
    back = predicted & {platform.name(row) for row in platform.gone}
    missing = {platform.name(row) for row in platform.there} - predicted
    if back or missing or len(deleted) != len(platform.gone):
        raise SystemExit(f"{len(back)} who left are back; {len(missing)} who are there are not predicted.")


def times(service: LetheProcess, day: Day) -> list[dict[str, float]]:
    """Return milliseconds from receipt to `applied` for each part of the day. Fails if a request has not completed."""
    with service.client() as client:
        found = [one for one in client.deletions() if one.id in day.sent]
    if {one.status for one in found} != {"completed"} or len(found) != len(day.sent):
        failures = [one.failure for one in found if one.status != "completed"]
        raise SystemExit(f"{len(failures)} of {len(day.sent)} requests have not completed: {failures[:3]}")
    found.sort(key=lambda one: one.received_at)
    table = []
    for part in np.array_split(np.arange(len(found)), _PARTS):
        chosen = [found[place] for place in part]
        spent = [
            1000 * (one.applied_at - one.received_at).total_seconds() for one in chosen if one.applied_at is not None
        ]
        table.append(
            {
                "nodes_from": min(day.sent[one.id] for one in chosen),
                "nodes_to": max(day.sent[one.id] for one in chosen),
                "requests": len(chosen),
                "p50_ms": float(np.percentile(spent, 50)),
                "p99_ms": float(np.percentile(spent, 99)),
            }
        )
    return table


def run(size: Size, features: int, rate: float, seed: int) -> dict[str, object]:
    """Simulate the day and return its figures."""
    everybody = size.nodes + size.counts["join"]
    graph = load_dataset(f"synthetic:n={everybody},d={features},classes=5,seed={seed}", data_dirs=[])
    first = range(size.nodes)
    platform = Platform(graph, set(first), {row for row in first if graph.train_mask[row]})
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        morning, home = platform.write(folder / "morning.npz"), folder / "home"
        home.mkdir(mode=0o700)
        lethe(home, "train", "--dataset", morning, "--name", "platform", "--out", folder / "morning")
        lethe(home, "model", "import", folder / "morning")
        service = LetheProcess(home, {"LETHE_REPAIR": "always"})
        try:
            day = Day(service.url, platform, size, seed)
            half = len(day.events) // 2
            seconds = day.send(day.events[:half], rate)
            with ThreadPoolExecutor(1) as pool:
                importing = pool.submit(import_anew, service, platform, day, folder, rate)
                seconds += day.send(day.events[half:], rate)
                waited_s = importing.result()
            settle(service, list(day.sent))
            check(service, platform)
            with service.client() as client:
                about = client.model()
            table = times(service, day)
        finally:
            status = service.stop()
    if status:
        raise SystemExit(f"The service ended with status {status}.")
    return {
        "device": device_name(torch.device("cpu")),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "load": os.getloadavg()[1],
        "features": features,
        "rate": rate,
        "seconds": seconds,
        "additions_waited_s": waited_s,
        "additions_that_waited": day.waited,
        "joined": size.counts["join"],
        "left": len(platform.gone),
        "nodes": about.live_nodes,
        "distance_bound_relative": about.distance_bound_relative,
        "parts": table,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=Size.nodes)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--rate", type=float, default=6.0, help="requests per second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="400 people and 24 features")
    parser.add_argument("--out", type=Path, help="also write the figures there, as JSON")
    options = parser.parse_args()
    size = Size(400 if options.small else options.nodes)
    found = run(size, 24 if options.small else options.features, options.rate, options.seed)
    parts = found["parts"]
    assert isinstance(parts, list)
    print("| people there | requests | to `applied`, p50 ms | p99 ms |\n| --- | ---: | ---: | ---: |")
    for one in parts:
        print(f"| {one['nodes_from']:,} to {one['nodes_to']:,} | {one['requests']:,} |", end="")
        print(f" {one['p50_ms']:,.0f} | {one['p99_ms']:,.0f} |")
    print(json.dumps(found, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
