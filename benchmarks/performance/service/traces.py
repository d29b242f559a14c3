"""The trace of one deletion, from a real export; and what traces cost a POST.

python -m benchmarks.performance.service.traces record    writes benchmarks/results/trace.json, drawn in docs/traces.md
python -m benchmarks.performance.service.traces cost      prints the cost

Two Lethes differ only in traces. Each gets the same requests in turn, one at a time, over one connection, and no batch
runs meanwhile. Two ratios compare them: the medians of latency; and the processor time of the answering process, all of
its threads and exports included, as the kernel counts it in nanoseconds. The collector is another process with the
lowest priority, because a POST does not include its work; it counts what it received in the end. The intervals
(95 %) come from leaving out one round at a time (jackknife).
"""

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import httpx2

from benchmarks.performance.service.collector import collecting, collecting_beside
from benchmarks.performance.service.lethe_process import HEADERS, LetheProcess

EXPORT = Path(__file__).parents[2] / "results" / "trace.json"
_NODES = 8000
_SETTINGS = {
    "LETHE_DATASET": f"synthetic:n={_NODES},d=16,classes=3,seed=3",
    "LETHE_REPAIR": "never",
    "LETHE_DEVICE": "cpu",
    "LETHE_API_WORKERS": "1",
}
#: No batch runs while requests are timed, for as long as a request may wait at most.
_UNTIL_BATCH_S = 60.0
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
    """Print both sides' figures, their ratios and intervals."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = stack.enter_context(collecting_beside())
        on = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        sides = [_side(stack, folder / name, more) for name, more in (("off", {}), ("on", on))]
        nodes = iter(range(_NODES))
        started = time.monotonic()
        # The first round warms up.
        found = [_round(sides, [str(next(nodes)) for _ in range(posts)]) for _ in range(1 + rounds)][1:]
        if time.monotonic() - started > _UNTIL_BATCH_S:
            raise SystemExit("A batch ran meanwhile. Use fewer rounds, or a machine with less other work.")
        before = [_processor_s(lethe) for lethe, _ in sides]
        _require(port, (1 + rounds) * posts)
        rest = [_processor_s(lethe) - earlier for (lethe, _), earlier in zip(sides, before, strict=True)]
        found[-1] = replace(found[-1], processor_s=[a + b for a, b in zip(found[-1].processor_s, rest, strict=True)])
    print(f"{rounds} rounds of {posts} POSTs on each side; load {os.getloadavg()[0]:.1f}")
    for name, of in (("processor ms", _processor_ms), ("latency ms", _latency_ms)):
        off, traced = of(found)
        print(f"{name}: {off:.3f} without traces, {traced:.3f} with, ratio {_with_interval(found, of)}")


@dataclass(frozen=True)
class _Round:
    """Seconds of a round: the processor's of each side, and those of each of its POSTs."""

    processor_s: list[float]
    latencies_s: list[list[float]]


def _side(stack: ExitStack, home: Path, more: dict[str, str]) -> tuple[LetheProcess, httpx2.Client]:
    lethe = LetheProcess(home, _SETTINGS | _QUIET | more)
    stack.callback(lethe.stop)
    return lethe, stack.enter_context(httpx2.Client(base_url=lethe.url, headers=HEADERS, timeout=60.0))


def _round(sides: list[tuple[LetheProcess, httpx2.Client]], nodes: list[str]) -> _Round:
    seconds: list[list[float]] = [[], []]
    before = [_processor_s(lethe) for lethe, _ in sides]
    for number, node in enumerate(nodes):
        for side in (0, 1) if number % 2 else (1, 0):
            started = time.perf_counter()
            answer = sides[side][1].post("/deletions", json={"kind": "node", "nodes": [node]})
            seconds[side].append(time.perf_counter() - started)
            assert answer.status_code == 202, answer.text
    return _Round([_processor_s(lethe) - earlier for (lethe, _), earlier in zip(sides, before, strict=True)], seconds)


def _processor_s(lethe: LetheProcess) -> float:
    """Return the processor seconds of all threads of the answering processes so far."""
    threads = [one for process in lethe.answering for one in Path(f"/proc/{process.pid}/task").glob("*/schedstat")]
    return sum(int(one.read_text().split()[0]) for one in threads) / 1e9


def _processor_ms(rounds: Sequence[_Round]) -> list[float]:
    """Return the milliseconds per POST, without and with traces."""
    posts = sum(len(one.latencies_s[0]) for one in rounds)
    return [1000 * sum(one.processor_s[side] for one in rounds) / posts for side in (0, 1)]


def _latency_ms(rounds: Sequence[_Round]) -> list[float]:
    """Return the medians in milliseconds, without and with traces."""
    return [1000 * statistics.median(second for one in rounds for second in one.latencies_s[side]) for side in (0, 1)]


def _with_interval(rounds: list[_Round], of: Callable[[Sequence[_Round]], list[float]]) -> str:
    def ratio(some: Sequence[_Round]) -> float:
        off, on = of(some)
        return on / off

    left_out = [ratio(rounds[:number] + rounds[number + 1 :]) for number in range(len(rounds))]
    half = 1.96 * math.sqrt((len(rounds) - 1) * statistics.pvariance(left_out))
    return f"{ratio(rounds):.4f} (95 %: {ratio(rounds) - half:.4f} to {ratio(rounds) + half:.4f})"


def _require(port: int, calls: int) -> None:
    """Require that the calls were exported: otherwise nothing was measured."""
    until = time.monotonic() + _PATIENCE_S
    while int(httpx2.get(f"http://127.0.0.1:{port}/POST%20%2Fdeletions", timeout=_PATIENCE_S).text) < calls:
        if time.monotonic() > until:
            raise SystemExit("The traces did not arrive.")
        time.sleep(1.0)


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "cost"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--posts", type=int, default=45)
    options = parser.parse_args()
    if options.what == "record":
        record()
    else:
        cost(options.rounds, options.posts)


if __name__ == "__main__":
    main()
