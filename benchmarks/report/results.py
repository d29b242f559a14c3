"""What was measured, as the report asks for it, and how a figure is written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.paper.experiments import EXPERIMENTS, SEEDS, plan
from benchmarks.paper.units import MEASURED, Unit, read

#: As people call them; the last is no reproduction of OGB's dataset of 128 features.
NAMES = {
    "cora": "Cora",
    "citeseer": "Citeseer",
    "pubmed": "Pubmed",
    "amazon_photo": "Amazon Photo",
    "coauthor_cs": "Coauthor CS",
    "ogbn_arxiv_llm": "arXiv graph, a language model's features",
}
LETHE, REPAIRED, RETRAINED = "lethe, projection", "lethe, projection and repair", "retraining"


@dataclass(frozen=True)
class Results:
    """Every unit's file of one folder."""

    records: Sequence[dict[str, Any]]

    @classmethod
    def of(cls, folder: Path) -> "Results":
        """What is below `folder`."""
        return cls(read(folder))

    def by_seed(self, experiment: str, dataset: str, method: str, case: str, figure: str) -> dict[int, float]:
        """A figure of every seed that has it."""
        return {
            record["seed"]: record["cases"][case][figure]
            for record in self.records
            if (record["experiment"], record["dataset"], record["method"]) == (experiment, dataset, method)
            and record["cases"].get(case, {}).get(figure) is not None
        }

    def values(self, experiment: str, dataset: str, method: str, case: str, figure: str) -> list[float]:
        """The same without the seeds."""
        return list(self.by_seed(experiment, dataset, method, case, figure).values())

    def mean(self, experiment: str, dataset: str, method: str, case: str, figure: str) -> float | None:
        """Over the seeds; None where there are none."""
        found = self.values(experiment, dataset, method, case, figure)
        return fmean(found) if found else None

    def datasets(self, experiment: str) -> list[str]:
        """Those with a figure of an experiment, in the order in which they are listed, others last."""
        there = {record["dataset"] for record in self.records if record["experiment"] == experiment and record["cases"]}
        order = list(NAMES)
        return sorted(there, key=lambda name: (order.index(name) if name in order else len(order), name))

    def methods(self, experiment: str, dataset: str) -> list[str]:
        """Those with a figure of an experiment on a dataset, in the catalogue's order."""
        there = {
            record["method"]
            for record in self.records
            if (record["experiment"], record["dataset"]) == (experiment, dataset) and record["cases"]
        }
        return [method for method in EXPERIMENTS[experiment].methods if method in there]

    def cases(self, experiment: str, dataset: str) -> list[str]:
        """Which there are of an experiment on a dataset, in the order in which they were measured."""
        return list(
            dict.fromkeys(
                case
                for record in self.records
                if (record["experiment"], record["dataset"]) == (experiment, dataset)
                for case in record["cases"]
            )
        )

    def size(self, dataset: str) -> dict[str, int] | None:
        """Nodes, edges, … of a dataset."""
        return next((r["graph"] for r in self.records if r["dataset"] == dataset and "graph" in r), None)

    @property
    def unfinished(self) -> list[tuple[Unit, str, list[str]]]:
        """Units that ran out of time or died, how they ended, and the cases that they had."""
        return [
            (Unit(r["experiment"], r["dataset"], r["method"], r["seed"]), r["outcome"], list(r["cases"]))
            for r in self.records
            if r["outcome"] != MEASURED
        ]

    def absent(self, experiment: str, dataset: str, method: str) -> str:
        """Why a figure of a method is not there: how its unit ended, or that there is none."""
        for unit, outcome, _ in self.unfinished:
            if (unit.experiment, unit.dataset, unit.method) == (experiment, dataset, method):
                return outcome
        return "not measured yet" if plan((experiment,), (dataset,), (method,), seeds=1) else "not planned"

    def percent_or_why(self, experiment: str, dataset: str, method: str, case: str, figure: str) -> str:
        """A figure in percent over the seeds, or why there is none."""
        found = self.values(experiment, dataset, method, case, figure)
        return percent(found) if found else self.absent(experiment, dataset, method)

    def missing(self) -> list[tuple[str, str, dict[tuple[int, int], list[str]]]]:
        """Of each experiment and dataset, the methods with fewer units than planned, by (there, planned)."""
        there = {(r["experiment"], r["dataset"], r["method"], r["seed"]) for r in self.records}
        planned: dict[tuple[str, str], dict[str, list[bool]]] = {}
        for unit in plan():
            found = (unit.experiment, unit.dataset, unit.method, unit.seed) in there
            planned.setdefault((unit.experiment, unit.dataset), {}).setdefault(unit.method, []).append(found)
        rows = []
        for (experiment, dataset), methods in planned.items():
            short: dict[tuple[int, int], list[str]] = {}
            for name, seeds in methods.items():
                if not all(seeds):
                    short.setdefault((sum(seeds), len(seeds)), []).append(name)
            if short:
                rows.append((experiment, dataset, short))
        return rows


def called(dataset: str) -> str:
    """A dataset's name in `NAMES`, or its own."""
    return NAMES.get(dataset, dataset)


def number(value: float | None, digits: int = 3) -> str:
    """Three digits or so many, thousands as they are, or a power of ten where that is shorter."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e5:
        return f"{value:.{digits - 2}e}"
    return f"{value:.{digits}g}" if abs(value) < 999.5 else f"{value:,.{digits - 3}f}"


def apart(values: Sequence[float], unit: str = "") -> list[str]:
    """Each as `number` has it, with more digits where that would make equals of different ones."""
    for digits in range(3, 8):
        told = [number(each, digits) for each in values]
        if len(set(told)) == len(set(values)):
            break
    return [each + unit for each in told]


def spread(values: Sequence[float]) -> str:
    """Mean and, of several, standard deviation; of how many, where that is fewer than all seeds."""
    return number(fmean(values)) + _deviation(values, number) if values else "–"


def percent(values: Sequence[float]) -> str:
    """The same in percent with one decimal."""
    return _tenths(fmean(values)) + _deviation(values, _tenths) if values else "–"


def _deviation(values: Sequence[float], written: Callable[[float], str]) -> str:
    if len(values) < 2:
        return ""
    return f" ± {written(stdev(values))}" + (f" ({len(values)})" if len(values) < SEEDS else "")


def _tenths(value: float) -> str:
    return f"{100 * value:.1f}"


def paired(*figures: dict[int, float]) -> tuple[list[float], int]:
    """Means of figures of every seed over the seeds that all have, and how many these are; no means where none."""
    seeds = set.intersection(*(set(each) for each in figures))
    return [fmean(each[seed] for seed in seeds) for each in figures] if seeds else [], len(seeds)


def repair_to_retraining(results: Results, dataset: str, share: str) -> float | None:
    """What the repair alone takes as a multiple of retraining, each in Lethe's projections in its own run."""
    methods = LETHE, REPAIRED, RETRAINED
    times, _ = paired(*(results.by_seed("closeness", dataset, each, share, "times_lethe") for each in methods))
    return (times[1] - times[0]) / times[2] if times else None


def by(seeds: int) -> str:
    """Of how many seeds something is."""
    return "one seed" if seeds == 1 else f"{seeds} seeds"
