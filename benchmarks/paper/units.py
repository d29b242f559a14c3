"""The paper's experiments in units of (experiment, dataset, method, seed), each one JSON file.

* `injection`, the feature injection test: a share of the training nodes gets a binary feature and a class of its own,
  the model is trained, exactly these nodes are deleted. The channel's rows of W before and after, test accuracy before
  and after, seconds of the deletion.
* `closeness`: a share of the training nodes is deleted. |W_u - W_p|_F / |W|_F, and the mean over deleted, remaining and
  test nodes of |p_p - p_u|_2, both models answering on the whole graph (that of before for deleted nodes), where u is
  retraining with the same lambda.

A unit that is there is not run again.

    python -m benchmarks.paper.units injection --method retraining influence+ [--dataset cora …] [--seeds 5] [--out …]
"""

import argparse
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from benchmarks.baselines.catalogue import METHODS, build
from benchmarks.baselines.linear import logits, probabilities
from benchmarks.baselines.protocol import Array, Nodes, Trained, accuracy
from benchmarks.baselines.retraining import Retraining
from benchmarks.performance.unlearn import device_name
from model_store.datasets.load import default_data_dirs, load_dataset
from projector import ModelSpec
from projector.forgetting.injection import inject_channel
from projector.graph.graph import Graph
from projector.network.spec import LossKind

SHARES = {"injection": (0.05, 0.10), "closeness": (0.01, 0.02, 0.05, 0.10)}


@dataclass(frozen=True)
class Unit:
    """One thing to measure."""

    experiment: str
    dataset: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        """Of its file."""
        return re.sub(r"[^a-z0-9+]+", "-", f"{self.experiment} {self.dataset} {self.method} {self.seed}") + ".json"


def drawn(graph: Graph, share: float, seed: int) -> Nodes:
    """A random share of the training nodes, at least one, ascending."""
    training = np.flatnonzero(graph.train_mask)
    size = max(1, round(share * training.size))
    return np.sort(np.random.default_rng(seed).choice(training, size=size, replace=False))


def forgotten(fitted: Trained, nodes: Nodes) -> tuple[Trained, float]:
    """Without `nodes`, and the seconds until the answers were there."""
    began = time.perf_counter()
    left = fitted.unlearn(nodes)
    left.predict()
    return left, time.perf_counter() - began


def injection(graph: Graph, unit: Unit, spec: ModelSpec, share: float) -> dict[str, float | None]:
    """The feature injection test with one share."""
    nodes = drawn(graph, share, unit.seed)
    injected = inject_channel(graph, [graph.node_ids[node] for node in nodes.tolist()], extra_class=True)
    fitted = build(unit.method, spec, unit.seed, spec.regularization).fit(injected)
    left, seconds = forgotten(fitted, nodes)
    return {
        "nodes": nodes.size,
        "channel_norm_before": channel_norm(fitted.weights),
        "channel_norm_after": channel_norm(left.weights),
        "accuracy_before": accuracy(fitted.predict(), injected, graph.test_mask),
        "accuracy_after": accuracy(left.predict(), injected, graph.test_mask),
        "seconds": seconds,
    }


def channel_norm(weights: Array | None) -> float | None:
    """The norm of the last feature's row of W, summed over blocks; None for a model without W."""
    return None if weights is None else float(np.linalg.norm(weights[:, -1], axis=1).sum())


def closeness(graph: Graph, unit: Unit, spec: ModelSpec, share: float) -> dict[str, float | None]:
    """Distance to retraining with one share deleted; of a linear method."""
    nodes = drawn(graph, share, unit.seed)
    fitted = build(unit.method, spec, unit.seed, spec.regularization).fit(graph)
    left, seconds = forgotten(fitted, nodes)
    if fitted.weights is None or left.weights is None:
        raise SystemExit(f"{unit.method} has no weights to compare.")
    retrained = Retraining(spec).fit(graph).unlearn(nodes)
    remaining = graph.train_mask.copy()
    remaining[nodes] = False
    there = left.predict(), retrained.predict()
    # Deleted nodes have no place in the graph any more: both models answer on that of before.
    gone = tuple(probabilities(logits(graph, spec, each), spec.loss) for each in (left.weights, retrained.weights))
    return {
        "nodes": nodes.size,
        "weights": float(np.linalg.norm(left.weights - retrained.weights) / np.linalg.norm(fitted.weights)),
        "deleted": float(np.linalg.norm(gone[0][nodes] - gone[1][nodes], axis=1).mean()),
        "remaining": float(np.linalg.norm(there[0][remaining] - there[1][remaining], axis=1).mean()),
        "test": float(np.linalg.norm(there[0][graph.test_mask] - there[1][graph.test_mask], axis=1).mean()),
        "seconds": seconds,
    }


EXPERIMENTS: dict[str, Callable[[Graph, Unit, ModelSpec, float], dict[str, float | None]]] = {
    "injection": injection,
    "closeness": closeness,
}


def run(unit: Unit, spec: ModelSpec, shares: Sequence[float]) -> dict[str, object]:
    """What one unit's file says."""
    graph = load_dataset(unit.dataset, data_dirs=default_data_dirs(os.environ), seed=unit.seed)
    began = time.perf_counter()
    measured = {f"{share:g}": EXPERIMENTS[unit.experiment](graph, unit, spec, share) for share in shares}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    return {
        **asdict(unit),
        "spec": asdict(spec),
        "graph": {"nodes": graph.nodes, "edges": graph.edges, "training": int(graph.train_mask.sum())},
        "by_share": measured,
        "seconds": time.perf_counter() - began,
        "commit": commit,
        "device": f"{device_name(torch.device('cpu'))}, {torch.get_num_threads()} threads",
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "numpy", "scipy", "torch-geometric", "pymetis")},
        },
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def main() -> None:
    """Runs what is missing of the units asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=list(EXPERIMENTS))
    parser.add_argument("--dataset", nargs="+", default=["cora"])
    parser.add_argument("--method", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--share", nargs="+", type=float, help="of the training nodes; default: the paper's")
    parser.add_argument("--regularization", type=float, default=ModelSpec().regularization)
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    spec = ModelSpec(loss=LossKind.OVR, regularization=options.regularization)
    for dataset in options.dataset:
        for method in options.method:
            for seed in range(options.seeds):
                unit = Unit(options.experiment, dataset, method, seed)
                file = options.out / unit.name
                if file.exists():
                    continue
                found = run(unit, spec, options.share or SHARES[unit.experiment])
                # Whole or not at all: an interrupted run leaves nothing that would be taken for a result.
                partial = file.with_suffix(".partial")
                partial.write_text(json.dumps(found, indent=1) + "\n")
                partial.rename(file)
                print(f"{unit.name}: {found['by_share']}", flush=True)


if __name__ == "__main__":
    main()
