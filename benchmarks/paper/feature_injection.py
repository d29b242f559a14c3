"""The paper's feature injection test (its section "Experiment results"), on the library level: no server, no database.

A share of the training nodes gets a binary feature of its own and a class of its own, and the model is trained on
that. Then exactly these nodes are deleted. "Forgotten" means that the injected feature's rows of W are zero
afterwards, and that nothing is left of W along the directions of the feature space that went with the nodes.

    python -m benchmarks.paper.feature_injection [--dataset cora …] [--share 0.05 …] [--device cpu]
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.performance.unlearn import device_name
from model_store.base.base import Base
from model_store.build import BuiltModel, build_model
from model_store.datasets.load import default_data_dirs, load_dataset
from model_store.manifest import InjectedChannel
from model_store.versions import SpanArrays, VersionState
from projector.forgetting.batch import Removal
from projector.forgetting.injection import inject_channel
from projector.graph.graph import Graph
from projector.network.spec import ModelSpec
from service.domain.snapshot import Snapshot
from service.domain.states import RepairPolicy
from service.unlearning.placement import Placement
from service.unlearning.resident import Resident

SHARES = (0.05, 0.10)


@dataclass(frozen=True)
class Result:
    """What one deletion of a share of the training nodes did."""

    #: Share of the training nodes that carried the injected feature and were deleted.
    share: float
    #: How many nodes that is.
    nodes: int
    #: Norms of W's rows for the injected feature, summed over blocks.
    channel_norm_before: float
    channel_norm_after: float
    directions_removed: int
    #: |Q^T W|_F over the directions removed; 0 when there were none.
    lost_direction_norm_before: float
    lost_direction_norm_after: float
    #: Share of test nodes predicted rightly, on the whole graph and on what remains of it.
    accuracy_before: float
    accuracy_after: float


def measure(graph: Graph, spec: ModelSpec, share: float, *, device: str, seed: int) -> Result:
    """Trains on `graph` with an injected channel and class on a random `share` of its training nodes; deletes them."""
    training = np.flatnonzero(graph.train_mask)
    size = max(1, round(share * training.size))
    rows = np.sort(np.random.default_rng(seed).choice(training, size=size, replace=False))
    injected = inject_channel(graph, [graph.node_ids[row] for row in rows], extra_class=True)
    built = build_model(
        injected,
        spec,
        name="feature-injection",
        dataset="injected",
        split="full",
        injected_channels=[InjectedChannel(column=injected.num_features - 1, nodes=size)],
        device=device,
    )
    resident = resident_of(built, device, RepairPolicy.NEVER)
    before = resident.committed.predictions()
    prepared = resident.prepare([Removal(nodes=rows)])
    projection = prepared.projection
    (norms,) = projection.norms
    assert norms.channel_before is not None
    assert norms.channel_after is not None
    return Result(
        share=share,
        nodes=size,
        channel_norm_before=norms.channel_before,
        channel_norm_after=norms.channel_after,
        directions_removed=projection.directions_removed,
        lost_direction_norm_before=projection.lost_direction_norm_before or 0.0,
        lost_direction_norm_after=projection.lost_direction_norm_after or 0.0,
        accuracy_before=_accuracy(before, injected.labels, graph.test_mask),
        accuracy_after=_accuracy(prepared.snapshot, injected.labels, graph.test_mask),
    )


def resident_of(built: BuiltModel, device: str, policy: RepairPolicy) -> Resident:
    """The model as the service holds it, of version 0."""
    everyone = np.ones(built.graph.nodes, dtype=np.bool_)
    version = VersionState(
        features=SpanArrays.untouched(built.weights),
        labels=SpanArrays.untouched(built.label_weights),
        live=everyone,
        featured=everyone,
        rank=built.manifest.rank,
    )
    base = Base(built.graph, built.beta, built.label_beta, built.public)
    return Resident.load(built.manifest, base, version, 0, Placement(device, policy))


def _accuracy(snapshot: Snapshot, labels: NDArray[np.int64], mask: NDArray[np.bool_]) -> float:
    right: NDArray[np.bool_] = snapshot.probabilities.argmax(axis=1) == labels
    return float(right[mask].mean())


def report(results: Sequence[Result]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| share of training nodes | nodes | channel norm before | after | directions removed | "
        "lost-direction norm before | after | test accuracy before | after |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {each.share:.0%} | {each.nodes} | {each.channel_norm_before:.4g} | {each.channel_norm_after:.1e} | "
        f"{each.directions_removed} | {each.lost_direction_norm_before:.4g} | {each.lost_direction_norm_after:.1e} | "
        f"{each.accuracy_before:.1%} | {each.accuracy_after:.1%} |"
        for each in results
    ]
    return "\n".join(lines)


def heading(name: str, graph: Graph, spec: ModelSpec, device: str, seed: int) -> str:
    """What the figures below it were measured on."""
    return (
        f"**{name}**: {graph.nodes:,} nodes, {graph.edges:,} edges, {graph.num_features:,} features, "
        f"{graph.num_classes} classes, {int(graph.train_mask.sum()):,} training and {int(graph.test_mask.sum()):,} "
        f"test nodes; L = {spec.hops}, combine {spec.combine}, lambda {spec.regularization:g}, seed {seed}; "
        f"{device_name(torch.device(device))}, {datetime.now(UTC):%Y-%m-%d}."
    )


def main() -> None:
    """Runs every dataset and share and prints a heading and a table for each dataset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=["cora"], help="names, files or synthetic:…")
    parser.add_argument("--share", nargs="+", type=float, default=SHARES, help="of the training nodes")
    parser.add_argument("--data-dir", type=Path, help="folder searched first for datasets")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of nodes")
    options = parser.parse_args()
    folders = default_data_dirs(os.environ)
    spec = ModelSpec()
    for name in options.dataset:
        graph = load_dataset(name, data_dirs=[options.data_dir, *folders] if options.data_dir else folders)
        results = [measure(graph, spec, share, device=options.device, seed=options.seed) for share in options.share]
        print(f"{heading(name, graph, spec, options.device, options.seed)}\n\n{report(results)}\n", flush=True)


if __name__ == "__main__":
    main()
