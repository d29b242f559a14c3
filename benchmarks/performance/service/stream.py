"""Deletions one by one over HTTP under `--repair always`: the time until each is applied, and its bound.

Each deletion is requested once the one before is applied or, with `--every`, when it is due. Times run from before the
POST to the moment in the record. The last figure is the time after the last deletion until all were `retrained`.

    python -m benchmarks.performance.service.stream amazon_photo pubmed --count 50
    python -m benchmarks.performance.service.stream arxiv --count 100 --every 6 [--out DIR]
"""

import argparse
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from benchmarks.device import device_name
from benchmarks.performance.service.floors import model_of
from benchmarks.performance.service.lethe_world import world
from lethe_client import Deletion, LetheClient

#: Seconds of idle time before the first deletion, and the longest wait for the last one.
_IDLE_S, _PATIENCE_S = 20.0, 180.0


def streamed(client: LetheClient, nodes: list[str], every_s: float | None) -> tuple[list[str], list[float]]:
    """Request the deletion of each node. Returns request ids and times (seconds since the epoch)."""
    requests, asked = list[str](), list[float]()
    began = time.time()
    for number, node in enumerate(nodes):
        if every_s is not None:
            time.sleep(max(0.0, began + number * every_s - time.time()))
        asked.append(time.time())
        requests.append(client.request_deletion([node]).id)
        if every_s is None:
            while not is_applied(client.deletion(requests[-1])):
                time.sleep(0.02)
    return requests, asked


def is_applied(deletion: Deletion) -> bool:
    """Whether it is applied. Raises SystemExit if it never will be."""
    if deletion.status in ("failed", "cancelled"):
        raise SystemExit(f"The deletion {deletion.id} is {deletion.status}: {deletion.failure}")
    return deletion.applied_at is not None


def settled(client: LetheClient, requests: list[str]) -> list[Deletion]:
    """Return the deletions once all are repaired, or after `_PATIENCE_S`."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        deletions = [client.deletion(request) for request in requests]
        if all(is_applied(each) and each.guarantee == "retrained" for each in deletions) or time.monotonic() > until:
            return deletions
        time.sleep(0.25)


def row(client: LetheClient, count: int, every_s: float | None) -> str:
    """Return one row of the table."""
    nodes = np.random.default_rng(0).permutation(client.model().nodes)[:count]
    time.sleep(_IDLE_S)
    requests, asked = streamed(client, [str(node) for node in nodes], every_s)
    deletions = settled(client, requests)
    ended = time.time()
    applied = [each.applied_at.timestamp() for each in deletions if each.applied_at is not None]
    took = 1000 * (np.array(applied) - np.array(asked))
    p50, p95 = np.quantile(took, [0.5, 0.95])
    retrained = sum(each.guarantee == "retrained" for each in deletions)
    audits = [each.audit for each in deletions if each.audit is not None]
    at_once = sum(audit.repair_version == audit.model_version_after for audit in audits)
    return (
        f"{p50:,.0f} | {p95:,.0f} | {took.max():,.0f} | {at_once} | {retrained} of {count} | {ended - max(applied):.0f}"
    )


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="+")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--every", type=float, help="seconds between two deletions")
    parser.add_argument("--repair-budget", help="as in `./lethe serve`; default: its default")
    parser.add_argument("--out", type=Path, help="folder that keeps the models for the next run")
    options = parser.parse_args()
    pace = "one after another" if options.every is None else f"one every {options.every:g} s"
    device = device_name(torch.device("cpu"))
    print(f"{device}, {datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[0]:.1f}, {pace}, fsync on\n")
    print("| dataset | p50 ms | p95 ms | longest ms | repaired at once | retrained | s after the last |")
    print("| --- |" + " ---: |" * 6)
    settings = {} if options.repair_budget is None else {"LETHE_REPAIR_BUDGET": options.repair_budget}
    with tempfile.TemporaryDirectory() as temporary:
        for dataset in options.dataset:
            model, what = model_of(dataset, options.out or Path(temporary) / "models")
            with (
                world(Path(temporary) / dataset, dataset, "always", model, settings) as place,
                place.lethe.client() as client,
            ):
                print(f"| {what} | {row(client, options.count, options.every)} |", flush=True)


if __name__ == "__main__":
    main()
