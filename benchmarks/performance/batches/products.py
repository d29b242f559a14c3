"""Times products with the representation H, through its sparse factors and with H itself, against the estimate.

The estimate (`projector/network/product_costs.py`) decides which of the two training uses; its constants were fitted to
this table. Figures are the best of a few repetitions, which reduces the effect of other work on the machine.

    python -m benchmarks.performance.batches.products [--dataset cora …] [--data DIR]
"""

import argparse
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from benchmarks.device import device_name
from model_store.datasets.load import default_data_dirs, load_dataset
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph, one_hot
from projector.network.inputs import inputs_of
from projector.network.product_costs import product_costs
from projector.network.propagation import Propagator
from projector.network.representation import Representation
from projector.network.sizes import Sizes
from projector.network.spec import Combine, ModelSpec

DATASETS = ("cora", "citeseer", "pubmed", "amazon_photo", "coauthor_cs", "synthetic:n=60000,d=128,classes=40,seed=0")
_CONCAT = ModelSpec(combine=Combine.CONCAT)
_LABELS = ModelSpec(combine=Combine.CONCAT, hops=3, label_hops=3)
_SPECS = {"last": ModelSpec(), "concat": _CONCAT, "concat, L = 3, 3 label hops": _LABELS}
_SECONDS, _LARGEST = 1.0, 4 << 30


def best(product: Callable[[], object]) -> float:
    """Return the seconds of the fastest call, among three or as many as fit in a second."""
    product()
    times: list[float] = []
    while len(times) < 3 or sum(times) < _SECONDS:
        started = time.perf_counter()
        product()
        times.append(time.perf_counter() - started)
    return min(times)


def row(graph: Graph, spec: ModelSpec) -> str:
    """Return p, milliseconds of H W and H^T R both ways, and their estimates."""
    labels = one_hot(graph.labels, graph.train_mask, graph.num_classes)
    propagator = Propagator.build(graph.adjacency, spec.propagation, spec.self_loops)
    features = graph.features.astype(np.float64) if isinstance(graph.features, np.ndarray) else graph.features
    inputs = inputs_of(spec, FeatureMatrix(features), labels, propagator)
    representation = Representation(inputs, np.flatnonzero(graph.train_mask).astype(np.int64))
    W = torch.randn((representation.columns, graph.num_classes), dtype=torch.float64)
    measured = [best(lambda: representation.transposed(representation.logits(W)))]
    if representation.rows * representation.columns * 8 <= _LARGEST:
        H = representation.dense()
        measured.append(best(lambda: H.T @ (H @ W)))
    costs = product_costs(spec, Sizes.of(graph))
    cells = [f"{representation.rows:,} x {representation.columns:,}", str(graph.num_classes)]
    cells += [f"{1e3 * seconds:.2f}" for seconds in measured] + ["-"] * (2 - len(measured))
    return " | ".join([*cells, f"{1e3 * costs.factors:.2f}", f"{1e3 * costs.dense:.2f}"])


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS))
    parser.add_argument("--data", type=Path, help="folder of the datasets")
    options = parser.parse_args()
    folders = [options.data] if options.data else default_data_dirs(os.environ)
    print(f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}, milliseconds of H W and H^T R together")
    print("| dataset | model | H | classes | factors | H itself | factors, estimate | H itself, estimate |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in options.dataset:
        graph = load_dataset(name, data_dirs=folders, seed=0)
        for model, spec in _SPECS.items():
            print(f"| {name} | {model} | {row(graph, spec)} |", flush=True)


if __name__ == "__main__":
    main()
