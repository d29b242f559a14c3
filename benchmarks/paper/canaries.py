"""What canaries cost in accuracy, and how the norms of their columns fall, on the library level.

For each seed the model is trained without canaries and with them; the seed draws the cohorts' labels and links, and the
split where a dataset has none. Then one cohort after another is deleted, each in a batch of its own and repaired as the
service does by default, and the norm of the cohort's column is read from the weights before and after.

    python -m benchmarks.paper.canaries [--dataset cora citeseer] [--cohorts 12] [--nodes 4] [--seeds 5] [--split full]
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import mean, stdev

import numpy as np
import torch

from benchmarks.paper.feature_injection import resident_of
from benchmarks.performance.unlearn import device_name
from model_store.build import BuiltModel, build_model
from model_store.canaries import Canaries, new_tag
from model_store.datasets import Split, default_data_dirs, load_dataset
from model_store.graph import Graph
from model_store.injection import add_canaries
from model_store.spec import ModelSpec
from service.domain.states import RepairPolicy, RequestKind
from service.unlearning.batch import Removal


@dataclass(frozen=True)
class Fall:
    """The norm of one cohort's column, summed over blocks, before and after the cohort was deleted."""

    cohort: int
    before: float
    after: float
    #: Dimensions that the features' span lost; 1 is right.
    directions_removed: int


@dataclass(frozen=True)
class Result:
    """One seed."""

    seed: int
    #: Shares of test nodes predicted rightly: trained without canaries, with them, and after all were deleted.
    accuracy_without: float
    accuracy_with: float
    accuracy_after: float
    falls: tuple[Fall, ...]


def measure(graph: Graph, spec: ModelSpec, accuracy_without: float, *, cohorts: int, nodes: int, device: str) -> Result:
    """Trains on `graph` with canaries drawn by `spec.seed`, and deletes one cohort after another."""
    larger, canaries = add_canaries(graph, cohorts, nodes=nodes, seed=spec.seed, tag=new_tag())
    built = _built(larger, spec, canaries, device)
    resident = resident_of(built, device, RepairPolicy.ALWAYS)
    falls = []
    for cohort in range(1, cohorts + 1):
        rows = np.array([resident.rows[name] for name in canaries.cohort_ids(cohort)])
        prepared = resident.prepare([Removal(RequestKind.NODE, nodes=rows)])
        (norms,) = prepared.projection.norms
        assert norms.channel_before is not None
        assert norms.channel_after is not None
        falls.append(Fall(cohort, norms.channel_before, norms.channel_after, prepared.projection.directions_removed))
        resident.commit(prepared)
    right = resident.predictions().probabilities.argmax(axis=1) == larger.labels
    return Result(spec.seed, accuracy_without, accuracy_of(built), float(right[larger.test_mask].mean()), tuple(falls))


def accuracy_of(built: BuiltModel) -> float:
    """The share of test nodes that a model predicts rightly."""
    found = built.manifest.accuracy.test
    assert found is not None, "the dataset has no test nodes"
    return found


def _built(graph: Graph, spec: ModelSpec, canaries: Canaries | None, device: str) -> BuiltModel:
    return build_model(graph, spec, name="canaries", dataset="canaries", split="full", canaries=canaries, device=device)


def accuracies(results: Sequence[Result]) -> str:
    """A line of Markdown: test accuracy without canaries, with them, and after the last drill, in percent."""
    columns = (
        [100 * each.accuracy_without for each in results],
        [100 * each.accuracy_with for each in results],
        [100 * (each.accuracy_with - each.accuracy_without) for each in results],
        [100 * each.accuracy_after for each in results],
    )
    return " | ".join(_spread(column) for column in columns)


def _spread(figures: Sequence[float]) -> str:
    return f"{mean(figures):.1f} ± {stdev(figures):.1f}" if len(figures) > 1 else f"{figures[0]:.1f}"


def drills(name: str, results: Sequence[Result]) -> list[str]:
    """A line of Markdown for each cohort: the least and largest norm over seeds before, the largest after."""
    lines = []
    for falls in zip(*(each.falls for each in results), strict=True):
        before, after = [fall.before for fall in falls], [fall.after for fall in falls]
        share = max(fall.after / fall.before for fall in falls)
        lost = sorted({fall.directions_removed for fall in falls})
        lines.append(
            f"| {name} | {falls[0].cohort} | {min(before):.3g} to {max(before):.3g} | {max(after):.1e} | {share:.1e} | "
            f"{', '.join(map(str, lost))} |"
        )
    return lines


def main() -> None:
    """Prints a heading and two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=["cora", "citeseer"])
    parser.add_argument("--cohorts", type=int, default=12)
    parser.add_argument("--nodes", type=int, default=4, help="of each cohort")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--split", choices=["full", "public"], default="full")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    split: Split = options.split
    spec, cost, fallen = ModelSpec(), [], []
    for name in options.dataset:
        results: list[Result] = []
        first = load_dataset(name, split=split, data_dirs=default_data_dirs(os.environ), seed=0)
        without = None
        for seed in range(options.seeds):
            graph = load_dataset(name, split=split, data_dirs=default_data_dirs(os.environ), seed=seed)
            # Without canaries a seed changes nothing but a split that is drawn.
            if without is None or not np.array_equal(graph.train_mask, first.train_mask):
                without = accuracy_of(_built(graph, spec, None, options.device))
            seeded = replace(spec, seed=seed)
            results.append(
                measure(graph, seeded, without, cohorts=options.cohorts, nodes=options.nodes, device=options.device)
            )
            print(f"# {name}, seed {seed}: {results[-1]}", flush=True)
        sizes = f"{first.nodes:,} | {first.num_features:,} | {int(first.train_mask.sum()):,}"
        sizes += f" | {int(first.test_mask.sum()):,}"
        cost.append(f"| {name} | {sizes} | {accuracies(results)} |")
        fallen += drills(name, results)
    print(
        f"{options.cohorts} cohorts of {options.nodes} canaries; {split} split, L = {spec.hops}, combine "
        f"{spec.combine}, lambda {spec.regularization:g}, {options.seeds} seeds, repaired after every drill; "
        f"{device_name(torch.device(options.device))}, {datetime.now(UTC):%Y-%m-%d}.\n"
    )
    print("| dataset | nodes | features | training | test | accuracy without | with | difference | after all drills |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    print("\n".join(cost))
    print("\n| dataset | cohort | column's norm before | after, at most | share left, at most | directions removed |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    print("\n".join(fallen))


if __name__ == "__main__":
    main()
