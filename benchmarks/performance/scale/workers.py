"""Training and a deletion by several workers on this machine: time, memory of each process, and traffic.

Graphs are Cora, Amazon Photo, the arXiv graph with a language model's features and synthetic graphs (`scale.graph`).
Models use softmax, concat, L = 2 (arXiv: L = 3), lambda 1e-4. Each worker is a process with one thread, alone or joined
by gloo on loopback. All workers map the graph's arrays from files. 64 random training nodes are then deleted in one
batch: projection, H of the remaining graph, preconditioner, repair to a proven relative bound of 1e-8, and the
predictions of all nodes.

Times are wall-clock and, since machines are shared, the processor time of the busiest worker: the wall-clock time with
a core for each worker and no waiting. For each process the table has the peak anonymous memory in training and in
deletion, and the final split into private and shared pages. Bytes are those that the collectives of all workers send.
They must agree with the formulas (`workers_formulas`), and no process may exceed its memory by formula by more than
`ALLOWED`; the command fails otherwise. *Share* is the peak up to the deletion divided by the formula. The loopback's
bytes are also given; they include all other traffic on this machine. `unshare -n sh -c 'ip link set lo up; …'` gives
the command its own loopback.

    python -m benchmarks.performance.scale.workers [--graphs cora amazon_photo ogbn_arxiv_llm] [--nodes 100000 400000]
        [--workers 1 2 4] [--runs 3] [--data DIR] [--json FILE]
"""

import argparse
import json
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from benchmarks.device import device_name
from benchmarks.performance.scale import workers_formulas as formulas
from benchmarks.performance.scale.gpu import DATASETS, PRODUCTS, drawn, graph_called, spec_of
from benchmarks.performance.scale.graph import Shape
from benchmarks.performance.scale.mapped_graph import store, stored
from benchmarks.performance.scale.process_figures import anonymous, processor, split_memory
from model_store.datasets.load import default_data_dirs
from projector.forgetting.batch import Removal
from projector.forgetting.coefficients import span_coefficients
from projector.forgetting.gram import factorise
from projector.forgetting.live_graph import LiveGraph
from projector.forgetting.optimum import stacked
from projector.forgetting.status import RepairStatus
from projector.forgetting.training_rows import TrainingRows
from projector.forgetting.update import HeldModel, RepairPlan, Updated, update
from projector.graph.graph import Graph
from projector.model import _held
from projector.network.sizes import Sizes
from projector.network.spec import ModelSpec
from projector.parallel.distributed import Distributed
from projector.parallel.workers import ALONE, Division, Workers
from projector.solvers.preconditioners import block_steps
from projector.training.fit import follow_training, train
from projector.training.fitted import Fitted
from projector.training.scaling import well_scaled

_TIMEOUT_S = 600.0
#: Bytes by which a process may exceed its formula: the allocator keeps blocks of up to 32 MiB after they are freed.
ALLOWED = 64 * formulas.MIB
#: Phases that are sampled separately.
LOADING, TRAINING, DELETING, AFTER = range(4)
#: Bytes of announcements beside matrices, and of sums of single numbers.
_SMALL = 1 << 14


class Counted(Distributed):
    """Workers that count the bytes sent by all of them; each derives the others' bytes from its arguments."""

    def __init__(self) -> None:
        super().__init__(_TIMEOUT_S)
        self.sent = 0

    def sum(self, tensor: Tensor) -> Tensor:
        """In a ring, each part goes round twice, less one step each."""
        self.sent += 2 * (self.count - 1) * tensor.nbytes
        return super().sum(tensor)

    def spread(self, tensor: Tensor, rank: int) -> None:
        """Counts one worker's tensor, once for each other."""
        self.sent += (self.count - 1) * tensor.nbytes
        super().spread(tensor, rank)

    def to_rows(self, columns: Tensor, rows: Division, width: Division) -> Tensor:
        """Counts everything except the parts that stay in place."""
        self.sent += columns.itemsize * _moved(rows, width)
        return super().to_rows(columns, rows, width)

    def to_columns(self, own: Tensor, rows: Division, width: Division) -> Tensor:
        """Counts everything except the parts that stay in place."""
        self.sent += own.itemsize * _moved(rows, width)
        return super().to_columns(own, rows, width)

    def joined(self, own: Tensor, rows: Division) -> Tensor:
        """Each worker sends the size of the longest part to every other."""
        row = own.itemsize * math.prod(own.shape[1:])
        self.sent += self.count * (self.count - 1) * max(rows.counts) * row
        return super().joined(own, rows)

    def _encoded(self, argument: Any, tensors: list[Tensor]) -> dict[str, Any]:
        before = len(tensors)
        encoded = super()._encoded(argument, tensors)
        self.sent += (self.count - 1) * sum(tensor.nbytes for tensor in tensors[before:])
        return encoded


def _moved(rows: Division, width: Division) -> int:
    return rows.length * width.length - sum(a * b for a, b in zip(rows.counts, width.counts, strict=True))


@dataclass(frozen=True)
class Task:
    """The task of a group of workers."""

    folder: Path
    spec: ModelSpec
    count: int

    def write(self, name: str, value: Any) -> None:
        """Store a value for `measured`."""
        (self.folder / name).write_text(json.dumps(value))

    def read(self, name: str) -> Any:
        """Return a value that a worker stored."""
        return json.loads((self.folder / name).read_text())


def take_part(rank: int, task: Task, phase: Any) -> None:
    """Run one worker on the graph's files. The first one reports its progress in `phase`."""
    torch.set_num_threads(1)
    workers: Workers = ALONE
    if task.count > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        rendezvous = f"file://{task.folder}/rendezvous"
        limit = timedelta(seconds=_TIMEOUT_S)
        dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=task.count, timeout=limit)
        workers = Counted()
    graph = stored(task.folder)
    if isinstance(workers, Counted) and rank:
        follow_training(task.spec, graph, workers)
        everyone = np.ones(graph.nodes, dtype=np.bool_)
        LiveGraph.of(graph, task.spec, None, live=everyone, featured=everyone, device="cpu").shared_by(workers)
        workers.follow()
    else:
        lead(task, graph, workers, phase)
    task.write(f"memory-{rank}.json", split_memory())
    if task.count > 1:
        # No worker may leave before all have sampled.
        dist.barrier()
        dist.destroy_process_group()


@dataclass
class Steps:
    """Steps of the first worker: seconds, bytes sent, bytes over the loopback."""

    counted: Counted | None
    found: dict[str, tuple[float, int, int]] = field(default_factory=dict)

    @contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """Record this block as a step."""
        began, sent, over = time.perf_counter(), self._sent(), loopback()
        yield
        self.found[name] = time.perf_counter() - began, self._sent() - sent, loopback() - over

    def _sent(self) -> int:
        return 0 if self.counted is None else self.counted.sent


def lead(task: Task, graph: Graph, workers: Workers, phase: Any) -> None:
    """Run the first worker: train, delete, and measure single steps."""
    counted = workers if isinstance(workers, Counted) else None
    steps = Steps(counted)
    with following(counted):
        phase.value = TRAINING
        with steps.measuring("training"):
            trained = train(task.spec, graph, workers=workers)
        phase.value = LOADING
        (beta,) = span_coefficients(trained.representation, trained.dual)
        gram = factorise(trained.representation.inputs.features.rows, np.ones(graph.nodes, dtype=np.bool_))
        label_beta = beta.new_zeros((0, graph.nodes, graph.num_classes))
        held = _held(Fitted(graph, task.spec, None, gram, trained, beta, label_beta, None), "cpu")
        del trained
    shared = held.live_graph.shared_by(workers)
    held = replace(held, live_graph=shared, training_rows=TrainingRows.of(shared))
    with following(counted):
        phase.value = DELETING
        with steps.measuring("deletion"):
            done = deleted(held, drawn(graph))
        phase.value = AFTER
        if counted is not None:
            single_steps(done, task.spec.regularization, steps)
    about = {
        "training": int(done.live_graph.training_rows.size),
        "preconditioned": done.outcome.without_preconditioner is None,
    }
    task.write("figures.json", {"steps": steps.found, **about})


@contextmanager
def following(counted: Counted | None) -> Iterator[None]:
    """Let the other workers follow this block."""
    yield
    if counted is not None:
        counted.end()


def deleted(held: HeldModel, nodes: NDArray[np.int64]) -> Updated:
    """Run one batch with its repair and the predictions of all nodes."""
    done = update(held, [Removal(nodes=nodes)], RepairPlan())
    if done.outcome.status is not RepairStatus.CONVERGED:
        raise RuntimeError(f"The repair ended as {done.outcome.status}.")
    done.live_graph.probabilities(done.state)
    return done


def single_steps(done: Updated, regularization: float, steps: Steps) -> None:
    """Run each kind of step once."""
    graph, W = done.live_graph, stacked(done.state)
    rows = TrainingRows.of(graph)
    if graph.keeps_dense:
        with steps.measuring(formulas.H):
            rows.H()
    objective = rows.objective(regularization)
    with steps.measuring(formulas.GRADIENT):
        point = objective.at(W)
    hessian = objective.hessian(point)
    with steps.measuring(formulas.PRODUCT):
        hessian(W)
    if graph.keeps_dense and not graph.factorises:
        with steps.measuring(formulas.BLOCKS):
            *_, blocks = block_steps(objective, point, rows)
        if blocks is not None and blocks.inverses.dtype == torch.float32:
            steps.found[formulas.SINGLE_BLOCKS] = steps.found.pop(formulas.BLOCKS)
    dual = objective.dual(point)
    with steps.measuring(formulas.COEFFICIENTS):
        span_coefficients(objective.representation, dual)
    with steps.measuring(formulas.PREDICTIONS):
        graph.logits(done.state)


def loopback() -> int:
    """Return the bytes sent over the loopback so far, by all processes."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.lstrip().startswith("lo:"))


@dataclass(frozen=True)
class Row:
    """One group of workers on one graph."""

    graph: str
    workers: int
    #: Seconds, bytes sent and bytes over the loopback, by step.
    steps: dict[str, tuple[float, int, int]]
    #: Processor seconds of the busiest worker, in training and in the deletion.
    busiest: dict[str, float]
    #: Bytes by `traffic`, for the steps that it covers.
    expected: dict[str, float]
    #: For each process, the first worker first: peak anonymous memory in training and in deletion (bytes).
    training: tuple[int, ...]
    deleting: tuple[int, ...]
    #: The final split of its memory.
    after: tuple[dict[str, int], ...]
    #: Peak anonymous memory up to the deletion, and by formula, with Python and its libraries (bytes).
    peaks: tuple[int, ...]
    by_formula: tuple[float, ...]
    #: Load of the machine at the start.
    load: float


def measured(name: str, graph: Graph, folder: Path, count: int) -> Row:
    """Run `count` workers on the graph in `folder`. Raises ArithmeticError if bytes differ from the formulas."""
    task, load = Task(folder, spec_of(name), count), os.getloadavg()[0]
    (folder / "rendezvous").unlink(missing_ok=True)
    phase = multiprocessing.get_context("spawn").Value("i", LOADING)
    peaks, used = np.zeros((AFTER + 1, count), dtype=np.int64), np.zeros((AFTER + 1, count))
    group = spawn(take_part, (task, phase), nprocs=count, join=False)  # type: ignore[no-untyped-call]
    before = np.zeros(count)
    while not group.join(timeout=0.02):
        now = np.array([processor(pid) for pid in group.pids()])
        peaks[phase.value] = np.maximum(peaks[phase.value], [anonymous(pid) for pid in group.pids()])
        used[phase.value] += now - before
        before = now
    figures = task.read("figures.json")
    steps, sizes = figures["steps"], replace(Sizes.of(graph), training=figures["training"])
    expected = {step: sent for step, sent in formulas.traffic(task.spec, sizes, count).items() if step in steps}
    agree(steps, expected, count)
    first, another = (
        formulas.PYTHON + of_worker(task.spec, sizes, count, preconditioned=figures["preconditioned"])
        for of_worker in (formulas.held_by_first, formulas.held)
    )
    after = tuple(task.read(f"memory-{rank}.json") for rank in range(count))
    busiest = {"training": used[TRAINING].max(), "deletion": used[DELETING].max()}
    training, deleting = (tuple(peaks[each].tolist()) for each in (TRAINING, DELETING))
    largest = tuple(peaks[:AFTER].max(axis=0).tolist())
    by_formula = (first, *[another] * (count - 1))
    return Row(name, count, steps, busiest, expected, training, deleting, after, largest, by_formula, load)


def agree(steps: dict[str, tuple[float, int, int]], expected: dict[str, float], workers: int) -> None:
    """Raise ArithmeticError if the bytes sent differ from `expected`."""
    for step, wanted in expected.items():
        sent = steps[step][1]
        if abs(sent - wanted) > 0.02 * wanted + _SMALL * workers:
            raise ArithmeticError(f"{step}: {workers} workers sent {sent:,} bytes, and not {wanted:,.0f}.")


def excesses(row: Row) -> list[str]:
    """Return a line for each process whose peak exceeds its formula by more than `ALLOWED`."""
    return [
        f"{row.graph}, worker {rank + 1} of {row.workers}: {peak:,} bytes, and not {formula:,.0f}."
        for rank, (peak, formula) in enumerate(zip(row.peaks, row.by_formula, strict=True))
        if peak > formula + ALLOWED
    ]


def report(rows: Sequence[Row]) -> str:
    """Format each graph and number of workers as Markdown, over all runs."""
    heads = [
        "graph",
        "workers",
        "load",
        "training, s",
        "to one",
        "busiest, s",
        "to one",
        "deletion, s",
        "to one",
        "busiest, s",
        "to one",
    ]
    heads += ["first, training", "another", "first, deleting", "another"]
    heads += ["first by formula", "share", "another by formula", "share", "private after", "shared"]
    heads += ["sent in training", "in the deletion", "over the loopback in training", "in the deletion"]
    lines = [f"| {' | '.join(heads)} |", f"| --- {'| ---: ' * (len(heads) - 1)}|"]
    for name, count in dict.fromkeys((row.graph, row.workers) for row in rows):
        runs = [row for row in rows if (row.graph, row.workers) == (name, count)]
        alone = [row for row in rows if (row.graph, row.workers) == (name, 1)]
        cells = [name, str(count), spread([row.load for row in runs], 1)]
        for step in ("training", "deletion"):
            pairs = [*zip(runs, alone, strict=True)] if alone else []
            cells.append(spread([row.steps[step][0] for row in runs], 1))
            cells.append(spread([own.steps[step][0] / one.steps[step][0] for own, one in pairs], 2))
            cells.append(spread([row.busiest[step] for row in runs], 1))
            cells.append(spread([own.busiest[step] / one.busiest[step] for own, one in pairs], 2))
        for peaks in ([row.training for row in runs], [row.deleting for row in runs]):
            cells.append(spread([peak[0] / formulas.MIB for peak in peaks], 0))
            cells.append(spread([max(peak[1:]) / formulas.MIB for peak in peaks if peak[1:]], 0))
        for ranks in (slice(0, 1), slice(1, None)):
            expected = runs[0].by_formula[ranks]
            cells.append(f"{expected[0] / formulas.MIB:,.0f}" if expected else "")
            cells.append(spread([peak / expected[0] for row in runs for peak in row.peaks[ranks]], 2))
        cells += [spread([row.after[-1][kind] / formulas.MIB for row in runs], 0) for kind in ("private", "shared")]
        for which in (1, 2):
            cells += [
                spread([row.steps[step][which] / formulas.MIB for row in runs], 0) for step in ("training", "deletion")
            ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| graph | workers | step | s | MiB sent | by formula | loopback |", f"| --- {'| ---: ' * 6}|"]
    for row in {(row.graph, row.workers): row for row in rows}.values():
        for step, wanted in row.expected.items():
            seconds, sent, over = row.steps[step]
            cells = [row.graph, str(row.workers), step, f"{seconds:.3f}"]
            cells += [f"{each / formulas.MIB:,.2f}" for each in (sent, wanted, over)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: Sequence[float], digits: int) -> str:
    """Format the range of the values; an empty text without values."""
    if not values:
        return ""
    least, most = (f"{value:,.{digits}f}" for value in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def main() -> None:
    """Print the table after each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="*", default=[name for name in DATASETS if name != PRODUCTS])
    parser.add_argument("--nodes", type=int, nargs="*", default=[100_000, 400_000], help="nodes of synthetic graphs")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--data", type=Path, help="folder of the datasets")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    folders = [options.data] if options.data else default_data_dirs(os.environ)
    print(
        f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}\n{formulas.on_paper(options.workers)}",
        flush=True,
    )
    named = [(name, name, Shape()) for name in options.graphs]
    named += [(f"{nodes:,} nodes", PRODUCTS, Shape().of_nodes(nodes)) for nodes in options.nodes]
    rows: list[Row] = []
    for title, name, shape in named:
        graph = graph_called(name, folders, shape, torch.device("cpu"))
        everyone = np.ones(graph.nodes, dtype=np.bool_)
        graph = replace(graph, features=well_scaled(graph.features, everyone).features)
        with tempfile.TemporaryDirectory() as folder:
            store(graph, Path(folder))
            # Mapped as well: the workers need the memory.
            graph = stored(Path(folder))
            for _ in range(options.runs):
                rows += [measured(title, graph, Path(folder), count) for count in options.workers]
                print(report([row for row in rows if row.graph == title]), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if failed := [line for row in rows for line in excesses(row)]:
        raise ArithmeticError("\n".join(["Some workers need more memory than by formula:", *failed]))


if __name__ == "__main__":
    main()
