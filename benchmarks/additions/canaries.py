"""Measures what canaries cost in accuracy, and how the norms of their columns fall, at the library level.

For each seed the model is trained without canaries and with them. The seed draws the cohorts' labels and links, and the
split if a dataset has none. Then the cohorts are deleted one by one, each in its own batch and repaired as the service
does by default. The norm of the cohort's column is read from the weights before and after.

    python -m benchmarks.additions.canaries [--dataset cora citeseer] [--cohorts 12] [--nodes 4] [--seeds 5]
        [--split full]
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import mean, stdev

import numpy as np
import torch

from benchmarks.device import device_name
from model_store.base.base import Base
from model_store.build import BuiltModel, build_model
from model_store.datasets.load import Split, default_data_dirs, load_dataset
from model_store.versions import SpanArrays, VersionState
from projector.forgetting.batch import Removal
from projector.forgetting.canaries import Canaries, new_tag
from projector.forgetting.injection import add_canaries
from projector.graph.graph import Graph
from projector.network.spec import ModelSpec
from service.domain.states import RepairPolicy
from service.unlearner.placement import Placement
from service.unlearner.resident import Resident


@dataclass(frozen=True)
class Fall:
    """Norm of one cohort's column, summed over blocks, before and after the cohort's deletion."""

    cohort: int
    before: float
    after: float
    #: Dimensions that the span of the features lost; the correct number is 1.
    directions_removed: int


@dataclass(frozen=True)
class Result:
    """Results for one seed."""

    seed: int
    #: Test accuracy when trained without canaries, with them, and after the deletion of all of them.
    accuracy_without: float
    accuracy_with: float
    accuracy_after: float
    falls: tuple[Fall, ...]


def measure(graph: Graph, spec: ModelSpec, accuracy_without: float, *, cohorts: int, nodes: int, device: str) -> Result:
    """Train on `graph` with canaries drawn by `spec.seed`, then delete the cohorts one by one."""
    larger, canaries = add_canaries(graph, cohorts, nodes=nodes, seed=spec.seed, tag=new_tag())
    built = _built(larger, spec, canaries, device)
    resident = _resident_of(built, device)
    falls = []
    for cohort in range(1, cohorts + 1):
        rows = resident.committed.node_ids.rows_of(canaries.cohort_ids(cohort))
        prepared = resident.prepare([Removal(nodes=rows)])
        (norms,) = prepared.projection.norms
        assert norms.channel_before is not None
        assert norms.channel_after is not None
        falls.append(Fall(cohort, norms.channel_before, norms.channel_after, prepared.projection.directions_removed))
        resident.commit(prepared)
    right = resident.committed.predictions().probabilities.argmax(axis=1) == larger.labels
    return Result(spec.seed, accuracy_without, accuracy_of(built), float(right[larger.test_mask].mean()), tuple(falls))


def accuracy_of(built: BuiltModel) -> float:
    """Return the test accuracy of a model."""
    found = built.manifest.accuracy.test
    assert found is not None, "the dataset has no test nodes"
    return found


def _built(graph: Graph, spec: ModelSpec, canaries: Canaries | None, device: str) -> BuiltModel:
    return build_model(graph, spec, name="canaries", dataset="canaries", split="full", canaries=canaries, device=device)


def _resident_of(built: BuiltModel, device: str) -> Resident:
    """Return the model as the service holds it, at version 0."""
    everyone = np.ones(built.graph.nodes, dtype=np.bool_)
    version = VersionState(
        features=SpanArrays.untouched(built.weights),
        labels=SpanArrays.untouched(built.label_weights),
        live=everyone,
        featured=everyone,
        rank=built.manifest.rank,
    )
    base = Base(built.graph, built.beta, built.label_beta, built.public)
    return Resident.load(built.manifest, base, version, 0, Placement(device, RepairPolicy.ALWAYS))


def report(found: Mapping[str, Sequence[Result]], graphs: Mapping[str, Graph]) -> str:
    """Return two Markdown tables: the accuracy cost for each dataset, and the fall of each cohort's column norm."""
    costs = [
        "| dataset | nodes | features | training | test | accuracy without | with | difference | after all drills | "
        "directions removed by a drill |",
        "| --- |" + " ---: |" * 9,
        *(_cost(name, graphs[name], results) for name, results in found.items()),
    ]
    falls = [
        "| cohort | " + " | ".join(f"{name}: norm before | after, at most" for name in found) + " |",
        "| ---: |" + " ---: |" * (2 * len(found)),
    ]
    for cohort in zip(*(_falls(results) for results in found.values()), strict=True):
        number = cohort[0][0].cohort
        falls.append(f"| {number} | " + " | ".join(_fall(drills) for drills in cohort) + " |")
    return "\n".join([*costs, "", *falls])


def _cost(name: str, graph: Graph, results: Sequence[Result]) -> str:
    """Return one table row: means over seeds, in percent of the test nodes."""
    lost = sorted({fall.directions_removed for each in results for fall in each.falls})
    cells = (
        name,
        f"{graph.nodes:,}",
        f"{graph.num_features:,}",
        f"{int(graph.train_mask.sum()):,}",
        f"{int(graph.test_mask.sum()):,}",
        _spread([100 * each.accuracy_without for each in results]),
        _spread([100 * each.accuracy_with for each in results]),
        _spread([100 * (each.accuracy_with - each.accuracy_without) for each in results], sign="+"),
        _spread([100 * each.accuracy_after for each in results]),
        ", ".join(map(str, lost)),
    )
    return "| " + " | ".join(cells) + " |"


def _spread(figures: Sequence[float], sign: str = "") -> str:
    middle = f"{mean(figures):{sign}.1f}"
    return f"{middle} ± {stdev(figures):.1f}" if len(figures) > 1 else middle


def _falls(results: Sequence[Result]) -> list[tuple[Fall, ...]]:
    """Return each cohort's drill under every seed."""
    return list(zip(*(each.falls for each in results), strict=True))


def _fall(drills: Sequence[Fall]) -> str:
    before = [drill.before for drill in drills]
    return f"{min(before):.3g} to {max(before):.3g} | {max(drill.after for drill in drills):.2g}"


def heading(spec: ModelSpec, split: str, cohorts: int, nodes: int, seeds: int, device: str) -> str:
    """Describe the setup of the measurement."""
    return (
        f"{cohorts} cohorts of {nodes} canaries; {split} split, L = {spec.hops}, combine {spec.combine}, "
        f"lambda {spec.regularization:g}, {seeds} seeds, repaired after every drill; "
        f"{device_name(torch.device(device))}, {datetime.now(UTC):%Y-%m-%d}."
    )


def main() -> None:
    """Print a heading and two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=["cora", "citeseer"])
    parser.add_argument("--cohorts", type=int, default=12)
    parser.add_argument("--nodes", type=int, default=4, help="nodes in each cohort")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--split", choices=["full", "public"], default="full")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    split: Split = options.split
    spec, folders = ModelSpec(), default_data_dirs(os.environ)
    found: dict[str, list[Result]] = {}
    graphs: dict[str, Graph] = {}
    for name in options.dataset:
        results = found.setdefault(name, [])
        without = None
        for seed in range(options.seeds):
            graph = load_dataset(name, split=split, data_dirs=folders, seed=seed)
            first = graphs.setdefault(name, graph)
            # Without canaries, the seed matters only if the split is drawn.
            if without is None or not np.array_equal(graph.train_mask, first.train_mask):
                without = accuracy_of(_built(graph, spec, None, options.device))
            seeded = replace(spec, seed=seed)
            results.append(
                measure(graph, seeded, without, cohorts=options.cohorts, nodes=options.nodes, device=options.device)
            )
            print(f"# {name}, seed {seed}: {results[-1]}", flush=True)
    print(heading(spec, split, options.cohorts, options.nodes, options.seeds, options.device))
    print("\n" + report(found, graphs))


if __name__ == "__main__":
    main()
