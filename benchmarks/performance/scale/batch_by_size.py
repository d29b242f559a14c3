"""What a batch of 64 deletions costs as the graph grows, part by part, at a fixed degree.

Graphs of `scale.graph` with an average degree of 10, 32 features and 8 classes; 8 % of the nodes are trained on, as of
ogbn-products. The model is trained to its optimum (softmax, L = 2, combine last, lambda 1e-4). Then batches of random
nodes go the way that they go in the service, as far as that is in memory: `NodeIds.rows_of`, `Resident.prepare` with
its repair to a relative bound of 1e-8, `Resident.commit`. Before each, the preconditioner is made as in idle time.

Every part is timed within that run and without the parts inside it, so that all of them add up to the batch. Medians of
a few batches after one that is not counted; slopes are those of log time on log n by least squares, of the processor's
time. On a shared machine the clock is told as its ratio to that alone.

    python -m benchmarks.performance.scale.batch_by_size [--nodes 10000 100000 1000000] [--batches 9]

Sizes that `FIGURES` has already are told, drawn and fitted beside those measured now; `--nodes` alone measures none.
"""

import argparse
import json
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
FIGURES = Path(__file__).parents[2] / "results" / "batch_by_size.json"
PICTURE = Path(__file__).parents[3] / "docs" / "images" / "batch_by_size.svg"
#: Where the service's code does each part: functions, and what holds them.
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
#: As rows of the table and lines of the picture.
ROWS = (WHOLE, *PARTS, REST, PRODUCT, IDLE)


@dataclass
class Stopwatch:
    """Seconds of the clock and of the processor by part, without those of parts inside it."""

    spent: dict[str, NDArray[np.float64]] = field(default_factory=lambda: defaultdict(lambda: np.zeros(2)))
    #: What the parts inside each part under way took, the innermost last.
    _inside: list[NDArray[np.float64]] = field(default_factory=list)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is done in here belongs to this part."""
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
        """Times `PARTS` in here."""
        with ExitStack() as stack:
            for name, places in PARTS.items():
                for place in places:
                    stack.enter_context(patch.object(*place, self._timed(name, getattr(*place))))
            yield

    def _timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
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
    #: By part: least, median and greatest of the batches, in seconds of the processor.
    processor: dict[str, tuple[float, float, float]]
    #: Seconds of the clock over those of the processor, of whole batches, in the middle.
    clock_ratio: float
    #: Of a repair, in the middle.
    products: float
    #: The most that the process has held by then, what was drawn and trained with and pages of files among it (GiB).
    peak_gib: float
    #: Device, date and load.
    where: str


def shape_of(nodes: int) -> Shape:
    """What is drawn for so many nodes."""
    return Shape(nodes=nodes, edges=nodes * DEGREE // 2, features=32, classes=8, training=nodes * 8 // 100)


def served(shape: Shape) -> Resident:
    """A model trained on a graph of that shape, held as the service holds it."""
    graph = graph_called(PRODUCTS, [], shape, torch.device("cpu"))
    held = fit(graph, ModelSpec(tolerance=1e-9))._held
    node_ids = graph.node_ids.without(np.empty(0, dtype=np.int64))
    committed = Committed(
        held.features, None, held.state, held.live_graph, held.training_rows, node_ids,
        np.zeros(graph.nodes, dtype=np.bool_), (), held.regularization, None,
    )  # fmt: skip
    return Resident(committed, Placement("cpu", RepairPolicy.ALWAYS))


def one_batch(resident: Resident, names: Sequence[str], watch: Stopwatch) -> int:
    """Deletes the nodes `names`, one request each; returns the products of the repair, which must converge."""
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
    """A model of that shape, and what its batches take after one that is not counted."""
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
    """That of log y on log x by least squares, for points (x, y), both positive."""
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])


def report(sizes: Sequence[Measured]) -> str:
    """The results as Markdown; slopes where there are two sizes."""
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
    """Each part against n, with its slope, as SVG."""
    parts = {name: [(each.nodes, each.processor[name][1]) for each in sizes] for name in ROWS}
    lines = [Line(f"{name}: {slope(points):.2f}", points) for name, points in parts.items()]
    return lines_by_size(lines, f"A batch of {BATCH} deletions by size of graph", "nodes", "seconds of the processor")


def main() -> None:
    """Prints a table and draws it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--batches", type=int, default=9)
    options = parser.parse_args()
    there = json.loads(FIGURES.read_text()) if FIGURES.exists() else []
    sizes = {each["nodes"]: Measured(**each) for each in there}
    for nodes in options.nodes:
        sizes[nodes] = measured(shape_of(nodes), options.batches)
        FIGURES.write_text(json.dumps([asdict(sizes[each]) for each in sorted(sizes)], indent=1) + "\n")
    ascending = [sizes[each] for each in sorted(sizes)]
    print(report(ascending))
    PICTURE.write_text(picture(ascending))


if __name__ == "__main__":
    main()
