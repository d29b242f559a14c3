"""Test accuracy of the linear model and of each extension, mean and standard deviation over seeds.

A seed draws the split where a dataset has no public one, and the MLP's start; with a public split and no MLP every seed
gives the same weights, and the deviation is 0. A tenth of the training nodes counts as public for the MLP, one in ten
of them drawn by the seed; they are trained on by both parts of the model.

    python -m benchmarks.paper.accuracy [--dataset cora …] [--seeds 5]
"""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from statistics import mean, pstdev

import numpy as np
import torch

from benchmarks.performance.unlearn import device_name
from model_store.build import build_model
from model_store.datasets import default_data_dirs, load_dataset
from model_store.graph import Graph
from model_store.spec import Combine, ModelSpec

DATASETS = ("cora", "citeseer", "pubmed", "amazon_photo", "coauthor_cs")
_PLAIN = ModelSpec(combine=Combine.CONCAT)
VARIANTS = {
    "linear": _PLAIN,
    "+ label reuse": replace(_PLAIN, label_hops=2),
    "+ diffusion": replace(_PLAIN, diffusion=True),
    "+ MLP": replace(_PLAIN, mlp_width=256),
}
_PUBLIC_SHARE = 0.1


def accuracy(graph: Graph, spec: ModelSpec, seed: int) -> float:
    """Share of test nodes classified rightly."""
    public: list[str] = []
    if spec.mlp_width:
        training = np.flatnonzero(graph.train_mask)
        chosen = np.random.default_rng(seed).choice(training, int(_PUBLIC_SHARE * training.size), replace=False)
        public = [graph.node_ids[row] for row in chosen]
    model = build_model(graph, replace(spec, seed=seed), name="a", dataset="a", split="full", public=public)
    found = model.manifest.accuracy.test
    if found is None:
        raise SystemExit("The dataset has no test nodes.")
    return found


def row(name: str, seeds: Sequence[int]) -> str:
    """One line of the table."""
    cells = [name]
    for variant, spec in VARIANTS.items():
        started = time.perf_counter()
        found = []
        for seed in seeds:
            graph = load_dataset(name, data_dirs=default_data_dirs(os.environ), seed=seed)
            found.append(accuracy(graph, spec, seed))
        cells.append(f"{mean(found):.3f} ± {pstdev(found):.3f}")
        print(f"# {name} {variant}: {time.perf_counter() - started:.0f} s", flush=True)
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    lines = [row(name, range(options.seeds)) for name in options.dataset]
    device = device_name(torch.device("cpu"))
    print(
        f"{device}, {datetime.now(UTC):%Y-%m-%d}, full split, lambda {_PLAIN.regularization:g}, {options.seeds} seeds"
    )
    print("| dataset | " + " | ".join(VARIANTS) + " |")
    print("| --- |" + " ---: |" * len(VARIANTS))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
