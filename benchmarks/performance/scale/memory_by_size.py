"""Memory of training, a deletion and an addition as the graph grows, beside the formulas of `model_store.memory`.

Graphs and models are those of `batch_by_size`: an average degree of 10, 32 features, 8 classes, 8 % of the nodes in
training, L = 2, combine last, lambda 1e-4; with softmax and with squared loss. Each pair of a size and a loss runs in a
process of its own, with one thread. It maps the graph's arrays from files, trains, deletes 64 training nodes, and adds
them again with their features, labels and edges. Both updates are repaired to a proven relative bound of 1e-8.

Figures are peaks of anonymous memory beyond what the process had before training, Python and its libraries. The mapped
graph is not anonymous; what an addition copies of it is. The command fails if a peak exceeds its formula by more than
`ALLOWED`: blocks of up to 32 MiB that the allocator keeps after they are freed.

    python -m benchmarks.performance.scale.memory_by_size [--nodes 10000 100000 1000000] [--losses softmax squared]

Sizes already in `FIGURES` are reported beside those measured now; an empty `--nodes` measures none.
"""

import argparse
import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.spawn import spawn

from benchmarks.device import device_name
from benchmarks.performance.scale.batch_by_size import SIZES, shape_of
from benchmarks.performance.scale.gpu import PRODUCTS, Newcomers, drawn, graph_called
from benchmarks.performance.scale.graph import Shape
from benchmarks.performance.scale.mapped_graph import store, stored
from benchmarks.performance.scale.process_figures import anonymous
from benchmarks.records import put, read
from model_store.memory import joining_need, serving_needs, training_needs
from projector import ModelSpec, Report, fit
from projector.forgetting.status import RepairStatus
from projector.network.sizes import Sizes
from projector.network.spec import Combine, LossKind

MIB = 1 << 20
#: The sizes of ogbn-papers100M (Hu et al. 2020), its citations taken as undirected edges.
PAPERS = Shape(111_059_956, 1_615_685_872, 128, 172, 1_207_179)
LOSSES = (LossKind.SOFTMAX, LossKind.SQUARED)
FIGURES = Path(__file__).parents[2] / "results" / "memory_by_size.ndjson"
ALLOWED = 64 * MIB
#: Divisor of the features, without which rounding limits the bound on the squared loss's weights to above 1e-8.
_DIVISOR = 16
#: Phases that are sampled separately, with their names.
LOADING, TRAINING, DELETING, ADDING, AFTER = range(5)
PHASES = {"training": TRAINING, "deletion of 64": DELETING, "addition of 64": ADDING}


@dataclass(frozen=True)
class Measured:
    """One size and loss."""

    nodes: int
    loss: str
    #: By phase: the peak, and the formula (bytes).
    peaks: dict[str, int]
    formulas: dict[str, int]
    #: Device, date and load.
    where: str


def spec_of(loss: LossKind) -> ModelSpec:
    """Return the trained model's specification."""
    return ModelSpec(loss=loss, tolerance=1e-9)


def sizes_of(shape: Shape) -> Sizes:
    """Return the sizes of a graph with dense features in single precision."""
    stored = shape.nodes * shape.features
    return Sizes(shape.nodes, shape.edges, shape.features, shape.classes, shape.training, stored, sparse=False)


def formulas(shape: Shape, spec: ModelSpec) -> dict[str, int]:
    """Return the bytes that each phase needs."""
    sizes = sizes_of(shape)
    training, serving = (sum(need.bytes for need in needs(spec, sizes)) for needs in (training_needs, serving_needs))
    return dict(zip(PHASES, (training, serving - joining_need(sizes).bytes, serving), strict=True))


def work(_: int, folder: Path, loss: str, phase: Any) -> None:
    """Train and update a model in a process of its own, which reports its progress in `phase`."""
    torch.set_num_threads(1)
    graph = stored(folder)
    nodes = drawn(graph)
    newcomers = Newcomers.of(graph, nodes)
    phase.value = TRAINING
    model = fit(graph, spec_of(LossKind(loss)))
    phase.value = DELETING
    model, report = model.forget(nodes=nodes)
    _require_converged(report)
    phase.value = ADDING
    model, report = newcomers.join(model)
    _require_converged(report)
    phase.value = AFTER


def _require_converged(report: Report) -> None:
    if report.repair is not RepairStatus.CONVERGED:
        raise RuntimeError(f"The repair ended as {report.repair}.")


def measured(shape: Shape, loss: LossKind, folder: Path) -> Measured:
    """Measure one loss on the graph in `folder`."""
    phase, load = multiprocessing.get_context("spawn").Value("i", LOADING), os.getloadavg()[0]
    peaks = np.zeros(AFTER + 1, dtype=np.int64)
    group = spawn(work, (folder, loss.value, phase), nprocs=1, join=False)  # type: ignore[no-untyped-call]
    while not group.join(timeout=0.02):
        now = phase.value
        peaks[now] = max(peaks[now], anonymous(group.pids()[0]))
    own = peaks - peaks[LOADING]
    where = f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}, load {load:.1f}"
    figures = {name: int(own[each]) for name, each in PHASES.items()}
    return Measured(shape.nodes, loss.value, figures, formulas(shape, spec_of(loss)), where)


def require_enough(each: Measured) -> None:
    """Raise ArithmeticError if more memory was used than the formulas say."""
    for phase, peak in each.peaks.items():
        if peak > each.formulas[phase] + ALLOWED:
            raise ArithmeticError(
                f"n = {each.nodes:,}, {each.loss}, {phase}: {peak:,} bytes, and not {each.formulas[phase]:,}."
            )


def report(rows: Sequence[Measured]) -> str:
    """Format the results as Markdown."""
    heads = [f"{phase}, MiB | by formula | share" for phase in PHASES]
    lines = [f"| n | loss | {' | '.join(heads)} |", f"| ---: | --- |{' ---: |' * (3 * len(PHASES))}"]
    for row in rows:
        cells = [f"{row.nodes:,}", row.loss]
        for phase, peak in row.peaks.items():
            formula = row.formulas[phase]
            cells += [f"{peak / MIB:,.0f}", f"{formula / MIB:,.0f}", f"{peak / formula:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *sorted({row.where for row in rows})])


def on_paper() -> str:
    """Evaluate the formulas of serving for ogbn-papers100M, L = 2, concat."""
    lines = ["| papers100M on paper, GB | softmax | squared |", "| --- | ---: | ---: |"]
    specs = [ModelSpec(loss=loss, combine=Combine.CONCAT) for loss in LOSSES]
    of_loss = [{need.what: need.bytes for need in serving_needs(spec, sizes_of(PAPERS))} for spec in specs]
    for what in of_loss[1]:
        cells = [f"{needs.get(what, 0) / 1e9:,.1f}" for needs in of_loss]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--losses", nargs="+", type=LossKind, default=list(LOSSES))
    options = parser.parse_args()
    for nodes in options.nodes:
        shape = shape_of(nodes)
        graph = graph_called(PRODUCTS, [], shape, torch.device("cpu"))
        with tempfile.TemporaryDirectory() as folder:
            store(replace(graph, features=graph.features / np.float32(_DIVISOR)), Path(folder))
            del graph
            for loss in options.losses:
                found = measured(shape, loss, Path(folder))
                put(FIGURES, asdict(found), ("nodes", "loss"))
                print(report([found]), flush=True)
    rows = [Measured(**each) for each in read(FIGURES)]
    print(f"{report(rows)}\n\n{on_paper()}")
    for row in rows:
        require_enough(row)


if __name__ == "__main__":
    main()
