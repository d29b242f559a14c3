"""One whole batch of deletions, against two methods without resident factors.

ours  leverages, projection of every block, pseudo-inverse, coefficients and per-request norms (`project`), float64 (a)
the paper's Option 1 as its official code does it: Gram matrix of the remaining rows and `pinv` in float32 (b)   a fair
exact baseline: downdated Gram matrix and a fresh eigendecomposition in float64

All start from the same state and take turns in one run. On a shared machine, only their ratios are meaningful. (a) and
(b) compute the projection of W alone, with all threads; only ours computes coefficients and norms. Ours is measured
with the number of threads that `projector.device.threads_for` chooses for the projection's matrices. It is also
measured with one thread and with all threads throughout, to judge that rule.

    python -m benchmarks.performance.batches.unlearn [--device cuda] [--shape 2708x1433] [--json FILE]
"""

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from benchmarks.device import device_name
from projector import device as torch_threads
from projector.forgetting.batch import InputRows, ModelState, Removal, project_batch
from projector.forgetting.factors import whole
from projector.forgetting.gram import Gram, factorise
from projector.forgetting.projection import SpanState
from projector.graph.features import FeatureMatrix

#: nodes, features, blocks, classes: the arXiv graph with an injected channel, Pubmed, Cora.
SHAPES = ((169_343, 129, 4, 41), (19_717, 500, 1, 3), (2_708, 1_433, 1, 7))
#: Other numbers of nodes for the first shape.
FLATNESS = (10_000, 100_000, 1_000_000)
BATCHES = (1, 64, 1_024)


@dataclass(frozen=True)
class Result:
    """Medians of one shape and batch size, in milliseconds."""

    nodes: int
    features: int
    blocks: int
    classes: int
    batch: int
    #: Chosen by the rule for the matrices of this shape.
    threads: int
    ours_ms: float
    #: The same with one thread, and with all threads.
    one_thread_ms: float
    all_threads_ms: float
    option_1_float32_ms: float | None
    exact_eigh_ms: float | None
    #: The bytes of factors and weights that must move, over the copy bandwidth of this run.
    bandwidth_floor_ms: float
    factor_method: str

    @property
    def fraction_of_floor(self) -> float:
        """Share of the time that moving those bytes alone would take."""
        return self.bandwidth_floor_ms / self.ours_ms


class Setting:
    """Seeded Gaussian features with W = X^T beta at one shape, resident on the device."""

    def __init__(self, nodes: int, features: int, blocks: int, classes: int, device: torch.device) -> None:
        rng = np.random.default_rng(0)
        self.shape = (nodes, features, blocks, classes)
        self.device = device
        X = rng.standard_normal((nodes, features), dtype=np.float32)
        rows = FeatureMatrix(X, device)
        self.X32 = torch.from_numpy(X).to(device)
        beta = torch.from_numpy(rng.standard_normal((blocks, nodes, classes), dtype=np.float32)).double()
        self.features = InputRows(rows, (beta / nodes).to(device))
        live = np.ones(nodes, dtype=np.bool_)
        B = torch.cat([rows.transposed_matmul(block) for block in self.features.beta], dim=1)
        self.span = SpanState(B, B.clone(), torch.zeros_like(B), factorise(rows, live), live)
        self.state = ModelState(0, self.span, None, live, classes)
        self.rng = rng

    def batch(self, size: int) -> np.ndarray:
        """Draw random rows to delete."""
        return self.rng.choice(self.shape[0], size=size, replace=False)


def ours(setting: Setting, rows: np.ndarray) -> str:
    """Run the whole batch, one request for each node."""
    removals = [Removal(nodes=row) for row in rows[:, None]]
    return project_batch(setting.state, setting.features, None, removals).factor_method.value


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread for everything."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(number)


@contextlib.contextmanager
def all_threads() -> Iterator[None]:
    """Use all threads for everything, by making no matrix count as small."""
    limit = torch_threads.ONE_THREAD_VALUES
    torch_threads.ONE_THREAD_VALUES = 0
    try:
        yield
    finally:
        torch_threads.ONE_THREAD_VALUES = limit


def threads_of(matrix: torch.Tensor) -> int:
    """Return the number of threads that the rule chooses."""
    with torch_threads.threads_for(matrix):
        return torch.get_num_threads()


def option_1(setting: Setting, rows: np.ndarray) -> None:
    """Compute M_remain from the remaining rows, its float32 `pinv`, and M M+ W."""
    keep = torch.ones(setting.shape[0], dtype=torch.bool, device=setting.device)
    keep[torch.from_numpy(rows).to(setting.device)] = False
    X = setting.X32[keep]
    M = X.T @ X
    _ = M @ (torch.linalg.pinv(M) @ setting.span.W.float())


def exact_eigh(setting: Setting, rows: np.ndarray) -> None:
    """Compute M - X_D^T X_D, its eigendecomposition in float64, and M M+ W."""
    X_D = setting.features.rows.dense_rows(rows)
    gram: Gram = setting.span.gram
    M = whole(gram.M) - X_D.T @ X_D
    values, vectors = torch.linalg.eigh(M)
    basis = vectors[:, values > gram.rank_tolerance * gram.sigma_ref_squared]
    _ = basis @ (basis.T @ setting.span.W)


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Return milliseconds, with the device's queue drained before and after."""
    _drain(device)
    started = time.perf_counter()
    work()
    _drain(device)
    return (time.perf_counter() - started) * 1000


def measure(setting: Setting, size: int, repeats: int, bandwidth: float, *, baselines: bool) -> Result:
    """Return medians over `repeats` turns; the slow baselines get fewer."""
    method = ours(setting, setting.batch(size))
    ways: list[Callable[[], AbstractContextManager[None]]] = [contextlib.nullcontext, one_thread, all_threads]
    own: list[list[float]] = [[] for _ in ways]
    others: dict[Callable[[Setting, np.ndarray], None], list[float]] = {option_1: [], exact_eigh: []}
    for turn in range(repeats):
        rows = setting.batch(size)
        # Each method comes first in turn, since the first one finds cold caches.
        for place in range(len(ways)):
            way = (turn + place) % len(ways)
            with ways[way]():
                own[way].append(timed(lambda rows=rows: ours(setting, rows), setting.device))  # type: ignore[misc]
        if baselines and turn < max(3, repeats // 4):
            for work, times in others.items():
                times.append(timed(lambda work=work, rows=rows: work(setting, rows), setting.device))  # type: ignore[misc]
    _, d, blocks, classes = setting.shape
    # M and M+ read and written, W read, B and T read and written, the deleted rows read.
    moved = 8 * (4 * d * d + 5 * blocks * d * classes + size * (d + blocks * classes))
    by_rule, one, all_of_them = (statistics.median(times) for times in own)
    return Result(
        *setting.shape,
        batch=size,
        threads=threads_of(setting.span.gram.stored),
        ours_ms=by_rule,
        one_thread_ms=one,
        all_threads_ms=all_of_them,
        option_1_float32_ms=statistics.median(others[option_1]) if baselines else None,
        exact_eigh_ms=statistics.median(others[exact_eigh]) if baselines else None,
        bandwidth_floor_ms=moved / bandwidth * 1000,
        factor_method=method,
    )


def copy_bandwidth(device: torch.device) -> float:
    """Return the bytes read and written per second by a large copy."""
    source = torch.ones(32 << 20, dtype=torch.float64, device=device)
    target = torch.empty_like(source)
    best = min(timed(lambda: target.copy_(source), device) for _ in range(5))
    return 2 * source.numel() * 8 / (best / 1000)


def _drain(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def report(results: Sequence[Result]) -> str:
    """Format the results as a Markdown table."""
    titles = ["n x d", "blocks", "classes", "m", "threads", "ours ms", "1 thread", "all threads", "(a) ms", "(b) ms"]
    titles += ["(a)/ours", "(a)/1", "(a)/all", "(b)/ours", "bandwidth floor/ours"]
    lines = [f"| {' | '.join(titles)} |", f"| ---{' | ---:' * (len(titles) - 1)} |"]
    for each in results:
        own = (each.ours_ms, each.one_thread_ms, each.all_threads_ms)
        a, b = each.option_1_float32_ms, each.exact_eigh_ms
        cells = [f"{each.nodes:,} x {each.features:,}", str(each.blocks), str(each.classes), f"{each.batch:,}"]
        cells += [str(each.threads), *(f"{time:.2f}" for time in own)]
        if a is None or b is None:
            cells += ["-"] * 6
        else:
            cells += [f"{a:.1f}", f"{b:.1f}", *(f"{a / time:.1f}" for time in own), f"{b / own[0]:.1f}"]
        lines.append(f"| {' | '.join(cells)} | {each.fraction_of_floor:.0%} |")
    return "\n".join(lines)


def main() -> None:
    """Run every shape and batch size and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", help="only this n x d, for example 2708x1433")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    device = torch.device(options.device)
    bandwidth = copy_bandwidth(device)
    results: list[Result] = []
    for shape in SHAPES:
        if options.shape and options.shape != f"{shape[0]}x{shape[1]}":
            continue
        setting = Setting(*shape, device)
        results += [measure(setting, size, options.repeats, bandwidth, baselines=True) for size in BATCHES]
    if not options.shape:
        for nodes in FLATNESS:
            setting = Setting(nodes, *SHAPES[0][1:], device)
            results.append(measure(setting, 64, options.repeats, bandwidth, baselines=False))
    name = device_name(device)
    print(
        f"{name}, {datetime.now(UTC):%Y-%m-%d}, copy bandwidth {bandwidth / 1e9:.1f} GB/s, medians of {options.repeats}"
    )
    print(report(results))
    if options.json:
        figures = [asdict(each) for each in results]
        facts = {
            "device": name,
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "torch": torch.__version__,
            "results": figures,
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
