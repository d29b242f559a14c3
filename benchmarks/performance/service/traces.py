"""The trace of one deletion, from a real export; and what traces cost a POST.

python -m benchmarks.performance.service.traces record    writes benchmarks/results/trace.json, drawn in docs/traces.md
python -m benchmarks.performance.service.traces cost      prints the cost

Two Lethes differ only in traces. Each gets the same requests in turn, one at a time, over one connection, and no batch
runs meanwhile. The figures are ratios of the two: of the medians of latency, and of the processor time of the answering
process, its exports included. The collector runs in this process.
"""

import argparse
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import httpx2

from benchmarks.performance.service.collector import Collector, collecting
from benchmarks.performance.service.lethe_process import HEADERS, LetheProcess

EXPORT = Path(__file__).parents[2] / "results" / "trace.json"
_NODES = 8000
_SETTINGS = {
    "LETHE_DATASET": f"synthetic:n={_NODES},d=16,classes=3,seed=3",
    "LETHE_REPAIR": "never",
    "LETHE_DEVICE": "cpu",
    "LETHE_API_WORKERS": "1",
}
#: No batch runs while requests are timed.
_QUIET = {"LETHE_MAX_WAIT_MS": "60000", "LETHE_MAX_BATCH_NODES": "100000"}
#: Longest wait for the end of a request and its export (seconds).
_PATIENCE_S = 120.0


def record() -> None:
    """Delete one node, with a repair, and write the spans of its trace."""
    with tempfile.TemporaryDirectory() as folder, collecting() as collector:
        # Every step is drawn, also `10 secured`.
        own = {"LETHE_REPAIR": "always", "OTEL_BSP_SCHEDULE_DELAY": "200", "LETHE_LEDGER": f"{folder}/ledger"}
        lethe = LetheProcess(Path(folder) / "home", _SETTINGS | own | collector.environment)
        try:
            with lethe.client() as client:
                client.wait(client.request_deletion(["17"]).id, timeout_s=_PATIENCE_S)
            until = time.monotonic() + _PATIENCE_S
            while not collector.named("10 acknowledged") and time.monotonic() < until:
                time.sleep(0.1)
        finally:
            lethe.stop()
    (call,) = collector.named("POST /deletions")
    spans = sorted((span for span in collector.spans if span.trace == call.trace), key=lambda span: span.start)
    rows = [{name: value for name, value in asdict(span).items() if name != "text"} for span in spans]
    EXPORT.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def cost(rounds: int, posts: int) -> None:
    """Print the ratios of each round, and their medians."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        collector = stack.enter_context(collecting())
        sides = [_side(stack, folder / name, more) for name, more in (("off", {}), ("on", collector.environment))]
        found: dict[str, list[float]] = {"latency": [], "processor": []}
        nodes = iter(range(_NODES))
        for number in range(-1, rounds):
            round_ = _round(sides, [str(next(nodes)) for _ in range(posts)])
            print(number, round_, flush=True)
            for name, ratio in round_.items() if number >= 0 else ():
                found[name].append(ratio)
        _require(collector, rounds * posts)
    for name, ratios in found.items():
        print(f"{name}: median {statistics.median(ratios):.4f}, from {min(ratios):.4f} to {max(ratios):.4f}")


def _side(stack: ExitStack, home: Path, more: dict[str, str]) -> tuple[LetheProcess, httpx2.Client]:
    lethe = LetheProcess(home, _SETTINGS | _QUIET | more)
    stack.callback(lethe.stop)
    return lethe, stack.enter_context(httpx2.Client(base_url=lethe.url, headers=HEADERS, timeout=60.0))


def _round(sides: list[tuple[LetheProcess, httpx2.Client]], nodes: list[str]) -> dict[str, float]:
    seconds: list[list[float]] = [[], []]
    before = [_processor(lethe) for lethe, _ in sides]
    for number, node in enumerate(nodes):
        for side in (0, 1) if number % 2 else (1, 0):
            started = time.perf_counter()
            answer = sides[side][1].post("/deletions", json={"kind": "node", "nodes": [node]})
            seconds[side].append(time.perf_counter() - started)
            assert answer.status_code == 202, answer.text
    spent = [_processor(lethe) - earlier for (lethe, _), earlier in zip(sides, before, strict=True)]
    off, on = map(statistics.median, seconds)
    per_post = [1e6 * one / len(nodes) for one in spent]
    print(f"ms {1e3 * off:.3f} {1e3 * on:.3f}, processor us {per_post[0]:.0f} {per_post[1]:.0f}", flush=True)
    return {"latency": on / off, "processor": spent[1] / spent[0]}


def _processor(lethe: LetheProcess) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in lethe.answering)


def _require(collector: Collector, calls: int) -> None:
    """Require that the calls were exported: otherwise nothing was measured."""
    until = time.monotonic() + _PATIENCE_S
    while len(collector.named("POST /deletions")) < calls:
        if time.monotonic() > until:
            raise SystemExit("The traces did not arrive.")
        time.sleep(0.5)


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "cost"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--posts", type=int, default=300)
    options = parser.parse_args()
    if options.what == "record":
        record()
    else:
        cost(options.rounds, options.posts)


if __name__ == "__main__":
    main()
