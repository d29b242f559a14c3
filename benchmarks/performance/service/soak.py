"""A long stream of single-node deletions under `--repair never`, with concurrent predictions.

A `lethe serve` with private, durable servers deletes nodes, one request each, while one client predicts without a
pause. The script counts batches by the method that gave M+, residuals beyond rounding, requests that did not end as
`completed`, predictions that failed or named a deleted node, and the memory of each process after the first tenth of
the stream and at its end. Exits with 1 if a request is stuck, a residual is too large, a prediction was wrong, or a
process's memory grew by more than `--growth`.

    python -m benchmarks.performance.service.soak [--deletions 10000] [--nodes 20000] [--features 64] [--growth 0.05]
"""

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.device import device_name
from benchmarks.performance.service.lethe_process import LetheProcess, memory_text

_CLIENTS = 4


@dataclass
class Predictions:
    """Results of the predicting client."""

    answered: int = 0
    failed: int = 0
    #: Predictions of nodes that were reported `completed` before the request.
    of_deleted: int = 0
    completed: set[str] = field(default_factory=set)


def predict(service: LetheProcess, nodes: list[str], seen: Predictions, stop: threading.Event) -> None:
    """Predict random nodes until stopped."""
    rng = random.Random(1)
    with service.client() as client:
        while not stop.is_set():
            asked = rng.sample(nodes, 50)
            gone = seen.completed.intersection(asked)
            try:
                answer = client.predict_many(asked)
            except Exception:  # noqa: BLE001 - whatever it is, the prediction failed
                seen.failed += 1
                continue
            seen.answered += 1
            seen.of_deleted += sum(one.node in gone for one in answer.predictions)


def stream(service: LetheProcess, doomed: list[str], seen: Predictions) -> tuple[float, list[dict[str, float]]]:
    """Delete `doomed`, one request each. Returns seconds, and MiB by process after each tenth."""
    accepted: dict[str, str] = {}
    with ThreadPoolExecutor(_CLIENTS) as pool, service.client() as client:
        started = time.monotonic()
        memory = list[dict[str, float]]()
        step = max(1, len(doomed) // 10)
        for begin in range(0, len(doomed), step):
            part = doomed[begin : begin + step]
            answers = pool.map(lambda node: client.request_deletion([node]), part)
            accepted.update({node: one.id for node, one in zip(part, answers, strict=True)})
            # Waits for each part: nodes completed by then must not be predicted any more.
            client.wait(accepted[part[-1]], timeout_s=600)
            while queued(service):
                time.sleep(0.05)
            seen.completed.update(part)
            memory.append(service.memory())
            print(f"  {begin + len(part):,} deleted, MiB: {memory_text(memory[-1])}", file=sys.stderr, flush=True)
        return time.monotonic() - started, memory


def queued(service: LetheProcess) -> bool:
    """Whether a request is not completed yet."""
    with service.client() as client:
        return any(next(iter(client.deletions(status=status)), None) is not None for status in ("queued", "applied"))


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deletions", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--growth", type=float, default=0.05, help="maximum growth of memory after the first tenth")
    options = parser.parse_args()
    nodes = [str(number) for number in range(options.nodes)]
    doomed = random.Random(0).sample(nodes, options.deletions)
    dataset = f"synthetic:n={options.nodes},d={options.features},classes=5,seed=0"
    seen, stop = Predictions(), threading.Event()
    with tempfile.TemporaryDirectory() as temporary:
        service = LetheProcess(Path(temporary) / "home", {"LETHE_DATASET": dataset, "LETHE_REPAIR": "never"})
        try:
            predicting = threading.Thread(target=predict, args=(service, nodes, seen, stop))
            predicting.start()
            try:
                seconds, memory = stream(service, doomed, seen)
            finally:
                stop.set()
                predicting.join()
            with service.client() as client:
                about = client.model()
                stuck = options.deletions - sum(1 for _ in client.deletions(status="completed"))
            metrics = service.metrics()
        finally:
            status = service.stop()
    methods = {name: int(value) for name, value in metrics.items() if name.startswith("lethe_batches_total{")}
    exceeded = sum(value for name, value in metrics.items() if name.startswith("lethe_residual_exceeded_total{"))
    growth = max(memory[-1][name] / warm - 1 for name, warm in memory[0].items())
    print(
        f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[1]:.1f}: "
        f"{options.deletions:,} of {options.nodes:,} nodes, {options.features} features, in {seconds:.0f} s\n"
        f"batches by method: {methods}\n"
        f"residuals above rounding: {exceeded:.0f}; span {about.span_residual or 0.0:.1e} at the end\n"
        f"memory in MiB after the first tenth: {memory_text(memory[0])}; at the end: {memory_text(memory[-1])}; "
        f"growth at most {growth:+.1%}\n"
        f"requests not completed: {stuck}; predictions answered {seen.answered}, failed {seen.failed}, of deleted "
        f"nodes {seen.of_deleted}; stopped with status {status}"
    )
    if stuck or exceeded or seen.failed or seen.of_deleted or growth > options.growth or status:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
