"""The cost of a batch of 64 deletions as the graph grows, part by part, at a fixed degree.

Graphs come from `scale.graph`, with an average degree of 10, 32 features and 8 classes. 8 % of the nodes are for
training, as in ogbn-products. The model is trained to its optimum (softmax, L = 2, combine last, lambda 1e-4). Batches
of random nodes then follow the in-memory path of the service: `NodeIds.rows_of`, `Resident.prepare` with its repair to
a relative bound of 1e-8, `Resident.commit`. Before each batch, the preconditioner is made as in idle time.

Every part is timed in that run without its inner parts, so the parts add up to the batch. Figures are medians of a few
batches after an uncounted one. Slopes are least-squares fits of log processor time on log n. Wall-clock time is
reported only as its ratio to processor time, since the machine is shared.

    python -m benchmarks.performance.scale.batch_by_size [--nodes 10000 100000 1000000] [--batches 9]

Sizes already in `FIGURES` are reported, drawn and fitted beside those measured now; an empty `--nodes` measures none.
"""

import argparse
import os
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from inspect import isgeneratorfunction
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.device import device_name
from benchmarks.performance.scale.gpu import PRODUCTS, graph_called
from benchmarks.performance.scale.graph import Shape
from benchmarks.records import put, read
from benchmarks.report.pictures.svg import Line, lines_by_size
from projector import ModelSpec, fit
from projector.forgetting import repair, update
from projector.forgetting.batch import Removal
from projector.forgetting.live_graph import LiveGraph
from projector.forgetting.status import RepairStatus
from projector.forgetting.training_rows import TrainingRows
from projector.graph.external_ids import NodeIds
from projector.network.propagation import Propagator
from service.domain.states import RepairPolicy
from service.unlearner import resident as resident_module
from service.unlearner.committed import Committed
from service.unlearner.placement import Placement
from service.unlearner.resident import Resident

SIZES, DEGREE, BATCH = (10_000, 100_000, 1_000_000), 10, 64
FIGURES = Path(__file__).parents[2] / "results" / "batch_by_size.ndjson"
PICTURE = Path(__file__).parents[3] / "docs" / "images" / "batch_by_size.svg"
#: The functions of the service for each part, and their owners.
PARTS: dict[str, tuple[tuple[Any, str], ...]] = {
    "ids looked up and forgotten": ((NodeIds, "rows_of"), (NodeIds, "forget")),
    "projection": ((update, "project_batch"),),
    "graph without the nodes": ((LiveGraph, "without"), (TrainingRows, "on")),
    "values of P": ((Propagator, "_scaled"),),
    "changed rows of H": ((TrainingRows, "steps"),),
    "repair": ((repair.RepairRun, "advance"),),
    "coefficients rebuilt": ((repair, "at_optimum"),),
    "certificates": ((repair, "certify"),),
    "predictions of all nodes": ((resident_module, "snapshot_of"), (resident_module, "finite")),
    "rows overwritten": ((Committed, "forget"),),
}
REST, WHOLE = "the rest", "the whole batch"
PRODUCT, IDLE = "one product of the repair", "in idle time: preconditioner"
#: In the order of the table's rows and the picture's lines.
ROWS = (WHOLE, *PARTS, REST, PRODUCT, IDLE)


@dataclass
class Stopwatch:
    """Wall-clock and processor seconds by part, without inner parts."""

    spent: dict[str, NDArray[np.float64]] = field(default_factory=lambda: defaultdict(lambda: np.zeros(2)))
    #: Time of the inner parts of each running part, innermost last.
    _inside: list[NDArray[np.float64]] = field(default_factory=list)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Assign the work in this block to a part."""
        self._inside.append(np.zeros(2))
        began = _now()
        try:
            yield
        finally:
            took = _now() - began
            self.spent[name] += took - self._inside.pop()
            if self._inside:
                self._inside[-1] += took

    @contextmanager
    def of_the_service(self) -> Iterator[None]:
        """Time `PARTS` in this block."""
        with ExitStack() as stack:
            for name, places in PARTS.items():
                for place in places:
                    stack.enter_context(patch.object(*place, self.timed(name, getattr(*place))))
            yield

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return `work`, a function or a generator function, timed as a part."""
        if not isgeneratorfunction(work):
            return self.part(name)(work)

        def steps(*given: Any) -> Iterator[Any]:
            made, end = work(*given), object()
            following: Callable[..., Any] = self.part(name)(next)
            while (each := following(made, end)) is not end:
                yield each

        return steps


def _now() -> NDArray[np.float64]:
    return np.array([time.perf_counter(), time.process_time()])


@dataclass(frozen=True)
class Measured:
    """One size."""

    nodes: int
    batches: int
    #: By part: minimum, median and maximum over batches, in seconds of processor time.
    processor: dict[str, tuple[float, float, float]]
    #: Median ratio of wall-clock to processor time of whole batches.
    clock_ratio: float
    #: Median number of products in a repair.
    products: float
    #: Peak memory of the process so far, including drawing, training and file pages (GiB).
    peak_gib: float
    #: Device, date and load.
    where: str


def shape_of(nodes: int) -> Shape:
    """Return the shape of the graph with this number of nodes."""
    return Shape(nodes=nodes, edges=nodes * DEGREE // 2, features=32, classes=8, training=nodes * 8 // 100)


def served(shape: Shape) -> Resident:
    """Return a model trained on a graph of that shape, held as in the service."""
    graph = graph_called(PRODUCTS, [], shape, torch.device("cpu"))
    held = fit(graph, ModelSpec(tolerance=1e-9))._held
    node_ids = graph.node_ids.without(np.empty(0, dtype=np.int64))
    committed = Committed(
        held.features, None, held.state, held.live_graph, held.training_rows, node_ids,
        np.zeros(graph.nodes, dtype=np.bool_), (), held.regularization, None,
    )  # fmt: skip
    return Resident(committed, Placement("cpu", RepairPolicy.ALWAYS))


def one_batch(resident: Resident, names: Sequence[str], watch: Stopwatch) -> int:
    """Delete the nodes `names`, one request each. Returns the products of the repair, which must converge."""
    with watch.of_the_service():
        with watch.part(IDLE):
            while resident.prefactor_due:
                resident.preconditioner_cache.advance(float("inf"))
        with watch.part(REST):
            rows = resident.committed.node_ids.rows_of(names)
            prepared = resident.prepare([Removal(nodes=row) for row in rows[:, None]])
            resident.commit(prepared)
    if prepared.outcome.status is not RepairStatus.CONVERGED or prepared.outcome.products is None:
        raise RuntimeError(f"The repair ended as {prepared.outcome.status}.")
    return prepared.outcome.products


def measured(shape: Shape, batches: int) -> Measured:
    """Train a model of that shape, and time its batches after an uncounted one."""
    resident = served(shape)
    nodes = np.random.default_rng(0).choice(shape.nodes, (batches + 1, BATCH), replace=False)
    times: list[dict[str, NDArray[np.float64]]] = []
    products: list[int] = []
    for batch in nodes:
        watch = Stopwatch()
        products.append(one_batch(resident, [str(node) for node in batch], watch))
        watch.spent[WHOLE] = sum((watch.spent[name] for name in (*PARTS, REST)), np.zeros(2))
        watch.spent[PRODUCT] = watch.spent["repair"] / products[-1]
        times.append(watch.spent)
    spent = {name: np.array([each[name] for each in times[1:]]) for name in ROWS}
    processor = {name: taken[:, 1] for name, taken in spent.items()}
    return Measured(
        shape.nodes, batches, {name: (t.min(), float(np.median(t)), t.max()) for name, t in processor.items()},
        float(np.median(spent[WHOLE][:, 0] / processor[WHOLE])), statistics.median(products[1:]),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20),
        f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[0]:.1f}",
    )  # fmt: skip


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the least-squares slope of log y on log x, for positive points (x, y)."""
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])


def report(sizes: Sequence[Measured]) -> str:
    """Format the results as Markdown, with slopes if there are two sizes."""
    lines = [
        f"- n = {s.nodes:,}: {s.batches} batches, {s.products:g} products to a repair, clock / processor "
        f"{s.clock_ratio:.2f}, {s.peak_gib:.1f} GiB at its peak; {s.where}"
        for s in sizes
    ]
    heads = [*(f"n = {each.nodes:,}" for each in sizes), "slope", "slope, last two"]
    lines += ["", f"| processor time, ms | {' | '.join(heads)} |", f"| ---{' | ---:' * len(heads)} |"]
    for name in ROWS:
        spreads = (each.processor[name] for each in sizes)
        cells = [f"{_ms(middle)} ({_ms(least)} to {_ms(most)})" for least, middle, most in spreads]
        points = [(each.nodes, each.processor[name][1]) for each in sizes]
        cells += [f"{slope(each):.2f}" if len(each) > 1 else "–" for each in (points, points[-2:])]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    milliseconds = 1000 * seconds
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def picture(sizes: Sequence[Measured]) -> str:
    """Draw each part against n, with its slope, as SVG."""
    parts = {name: [(each.nodes, each.processor[name][1]) for each in sizes] for name in ROWS}
    lines = [Line(f"{name}: {slope(points):.2f}", points) for name, points in parts.items()]
    return lines_by_size(lines, f"A batch of {BATCH} deletions by size of graph", "nodes", "seconds of the processor")


def main() -> None:
    """Print a table and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--batches", type=int, default=9)
    options = parser.parse_args()
    for nodes in options.nodes:
        put(FIGURES, asdict(measured(shape_of(nodes), options.batches)), ("nodes",))
    ascending = [Measured(**each) for each in read(FIGURES)]
    print(report(ascending))
    PICTURE.write_text(picture(ascending))


if __name__ == "__main__":
    main()
