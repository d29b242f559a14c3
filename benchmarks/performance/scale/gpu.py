"""Training, deletions, additions and predictions on one device. Needs only torch, numpy, scipy and safetensors.

It runs on Cora, Amazon Photo, the arXiv graph with a language model's features, and a synthetic graph of the size of
ogbn-products (`scale.graph`), each with softmax and with squared loss, L = 2 (arXiv: L = 3), concat, lambda 1e-4:

- training: `projector.fit`
- batch: 64 random nodes, projected, with leverages, pseudo-inverse and norms (`project_batch`)
- repair: the rest of their deletion, to the weights of retraining with a proven relative bound of 1e-8
- addition: the same 64 nodes join again with their features, labels and edges, to the same bound
- refresh: the predictions of every node

Before that, on graphs of up to 20,000 nodes, weights and predictions after the deletion and after the addition are
compared with those that the CPU computes. Last, a batch of 64 at 169,343 x 129 with 4 blocks of 41 classes, as in
`benchmarks.performance.batches.unlearn`.

    python -m benchmarks.performance.scale.gpu [--device cuda] [--only cora …] [--data DIR] [--json FILE]
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.device import device_name
from benchmarks.performance.batches.unlearn import Setting, ours, timed
from benchmarks.performance.scale.graph import Shape, write
from model_store.datasets.load import default_data_dirs, load_dataset
from projector import Model, ModelSpec, Report, fit
from projector.forgetting.batch import Removal, project_batch
from projector.graph.graph import Features, Graph
from projector.network.spec import Combine, LossKind

PRODUCTS = "products"
DATASETS = ("cora", "amazon_photo", "ogbn_arxiv_llm", PRODUCTS)
BATCH, REPEATS = 64, 20
#: Larger graphs are not compared with the CPU, which would take longer than everything else.
_COMPARED_NODES = 20_000
#: Both repair to a proven relative bound of 1e-8, so their weights differ by at most twice that.
_WEIGHTS_APART, _ANSWERS_APART = 2.1e-8, 1e-5

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """Times for one graph and loss, in milliseconds except for training."""

    dataset: str
    loss: str
    nodes: int
    edges: int
    training_nodes: int
    #: p, the rows of W.
    rows_of_weights: int
    classes: int
    training_s: float
    batch_ms: float
    repair_ms: float
    repair_steps: int | None
    addition_ms: float
    addition_steps: int | None
    refresh_ms: float
    #: The largest |W - W_cpu| / |W_cpu| of the two updates, and the largest difference of a probability; None if not
    #: compared.
    weights_differ: float | None
    answers_differ: float | None
    #: Peak memory of torch on a GPU, in GiB; None on the CPU.
    peak_gib: float | None


def spec_of(dataset: str, loss: LossKind = LossKind.SOFTMAX) -> ModelSpec:
    """Return the trained model's specification."""
    hops = 3 if "arxiv" in dataset else 2
    return ModelSpec(loss=loss, combine=Combine.CONCAT, hops=hops, tolerance=1e-9)


def measured(dataset: str, graph: Graph, loss: LossKind, device: torch.device) -> Row:
    """Return one row."""
    spec, nodes = spec_of(dataset, loss), drawn(graph)
    newcomers = Newcomers.of(graph, nodes)
    differ: tuple[float | None, float | None] = (None, None)
    if device.type != "cpu" and graph.nodes <= _COMPARED_NODES:
        differ = compared(graph, spec, newcomers, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    model, training = lasting(lambda: fit(graph, spec, device=str(device)))
    batches = [timed(lambda: projected(model, nodes), device) for _ in range(REPEATS)]
    (left, deletion), forgotten = lasting(lambda: model.forget(nodes=nodes))
    (whole, addition), joined = lasting(lambda: newcomers.join(left))
    refreshes = [timed(whole.predict, device) for _ in range(5)]
    weights = left.weights
    return Row(
        dataset, loss, graph.nodes, graph.edges, int(graph.train_mask.sum()), weights.shape[0] * weights.shape[1],
        graph.num_classes, training, statistics.median(batches), 1000 * forgotten - statistics.median(batches),
        deletion.iterations, 1000 * joined, addition.iterations, statistics.median(refreshes), *differ,
        torch.cuda.max_memory_allocated(device) / (1 << 30) if device.type == "cuda" else None,
    )  # fmt: skip


def lasting(work: Callable[[], T]) -> tuple[T, float]:
    """Return what `work` returns, and its seconds. It must end by reading its result from the device."""
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


@dataclass(frozen=True, eq=False)
class Newcomers:
    """The drawn nodes, as they join after their deletion."""

    nodes: NDArray[np.int64]
    features: Features
    labels: NDArray[np.int64]
    #: (k, 2), each edge once; the drawn nodes are n, n + 1, ….
    edges: NDArray[np.int64]

    @classmethod
    def of(cls, graph: Graph, nodes: NDArray[np.int64]) -> Self:
        """Read them from the graph."""
        rows = graph.adjacency[nodes].tocoo()
        place = np.arange(graph.nodes)
        place[nodes] = graph.nodes + np.arange(nodes.size)
        ends = np.sort(np.stack([place[nodes[rows.row]], place[rows.col]], axis=1), axis=1)
        return cls(nodes, graph.features[nodes], graph.labels[nodes], np.unique(ends, axis=0))

    def join(self, model: Model) -> tuple[Model, Report]:
        """Return the model with them, and the report."""
        return model.update(add_nodes=self.features, add_labels=self.labels, add_edges=self.edges)


def drawn(graph: Graph, count: int = BATCH, seed: int = 0) -> NDArray[np.int64]:
    """Draw random training nodes to delete."""
    training = np.flatnonzero(graph.train_mask)
    return np.sort(np.random.default_rng(seed).choice(training, min(count, training.size // 4), replace=False))


def projected(model: Model, nodes: NDArray[np.int64]) -> None:
    """Run the projection alone, one request for each node."""
    held = model._held
    project_batch(held.state, held.features, held.labels, [Removal(nodes=row) for row in nodes[:, None]])


def compared(graph: Graph, spec: ModelSpec, newcomers: Newcomers, device: torch.device) -> tuple[float, float]:
    """Return the largest differences of weights and predictions from the CPU's, after each update.

    Raises ArithmeticError if they are too large for both to be right; the device's times would then be meaningless.
    """
    here, there = (fit(graph, spec, device=name).forget(nodes=newcomers.nodes)[0] for name in (str(device), "cpu"))
    pairs = [(here, there), (newcomers.join(here)[0], newcomers.join(there)[0])]
    weights = max(
        float(np.linalg.norm(one.weights - other.weights)) / float(np.linalg.norm(other.weights))
        for one, other in pairs
    )
    answers = max(float(np.abs(one.predict() - other.predict()).max()) for one, other in pairs)
    if not (weights <= _WEIGHTS_APART and answers <= _ANSWERS_APART):
        raise ArithmeticError(f"{device} and cpu differ by {weights:.1e} in weights and {answers:.1e} in answers.")
    return weights, answers


def graph_called(name: str, folders: list[Path], shape: Shape, device: torch.device) -> Graph:
    """Return the dataset, or the synthetic graph of `shape` with edges drawn on `device`."""
    if name != PRODUCTS:
        return load_dataset(name, data_dirs=folders, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "products.npz"
        write(file, shape, str(device))
        return load_dataset(str(file), data_dirs=[], seed=0)


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each graph once it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", default=list(DATASETS))
    parser.add_argument(
        "--nodes", type=int, help="nodes of the synthetic graph; edges and training nodes scale with it"
    )
    parser.add_argument("--data", type=Path, help="folder of the datasets")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    shape = Shape() if options.nodes is None else Shape().of_nodes(options.nodes)
    folders = [options.data] if options.data else default_data_dirs(os.environ)
    name, day = device_name(device), f"{datetime.now(UTC):%Y-%m-%d}"
    print(f"{name}, torch {torch.__version__}, {day}", flush=True)
    rows = []
    for each in options.only:
        graph = graph_called(each, folders, shape, device)
        for loss in (LossKind.SOFTMAX, LossKind.SQUARED):
            rows.append(measured(each, graph, loss, device))
            print(json.dumps(asdict(rows[-1])), flush=True)
    setting = Setting(169_343, 129, 4, 41, device)
    batches = [timed(alone(setting), device) for _ in range(REPEATS)]
    print(f"a batch of {BATCH} at 169,343 x 129: {statistics.median(batches):.3f} ms", flush=True)
    if options.json:
        about = {"device": name, "torch": torch.__version__, "date": day}
        graphs = [asdict(row) for row in rows]
        options.json.write_text(
            json.dumps({**about, "batch_ms": statistics.median(batches), "graphs": graphs}, indent=1)
        )


def alone(setting: Setting) -> Callable[[], str]:
    """Return a batch of other rows for each call, drawn before the timer starts."""
    rows = setting.batch(BATCH)
    return lambda: ours(setting, rows)


if __name__ == "__main__":
    main()
