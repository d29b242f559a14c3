"""Measured results for the report, and the format of figures."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.paper.experiments import EXPERIMENTS, SEEDS, plan
from benchmarks.paper.units import MEASURED, Unit, read

#: Common names. The last one does not reproduce OGB's dataset with 128 features.
NAMES = {
    "cora": "Cora",
    "citeseer": "Citeseer",
    "pubmed": "Pubmed",
    "amazon_photo": "Amazon Photo",
    "coauthor_cs": "Coauthor CS",
    "ogbn_arxiv_llm": "arXiv graph, a language model's features",
}
#: How tables name methods whose names in the records say too little.
_METHOD_NAMES = {
    "gcn, graphsaint": "gcn, two layers, graphsaint's node sampler",
    "graph eraser, gcn graphsaint, metis, mean": "graph eraser, gcn, graphsaint's node sampler, metis, mean",
}
LETHE, REPAIRED, RETRAINED = "lethe, projection", "lethe, projection and repair", "retraining"


@dataclass(frozen=True)
class Results:
    """The records of all units in one folder."""

    records: Sequence[dict[str, Any]]

    @classmethod
    def of(cls, folder: Path) -> "Results":
        """Read the results below `folder`."""
        return cls(read(folder))

    def by_seed(self, experiment: str, dataset: str, method: str, case: str, figure: str) -> dict[int, float]:
        """Return a figure for every seed that has it."""
        return {
            record["seed"]: record["cases"][case][figure]
            for record in self._of_methods.get((experiment, dataset, method), ())
            if record["cases"].get(case, {}).get(figure) is not None
        }

    @cached_property
    def _of_methods(self) -> Mapping[tuple[str, str, str], Sequence[dict[str, Any]]]:
        """The records of each experiment, dataset and method."""
        found = defaultdict(list)
        for record in self.records:
            found[record["experiment"], record["dataset"], record["method"]].append(record)
        return found

    def values(self, experiment: str, dataset: str, method: str, case: str, figure: str) -> list[float]:
        """Return a figure of all seeds, without the seeds."""
        return list(self.by_seed(experiment, dataset, method, case, figure).values())

    def mean(self, experiment: str, dataset: str, method: str, case: str, figure: str) -> float | None:
        """Return the mean over seeds; None without any."""
        found = self.values(experiment, dataset, method, case, figure)
        return fmean(found) if found else None

    def datasets(self, experiment: str) -> list[str]:
        """Return the datasets with a figure of an experiment, in the listed order, others last."""
        there = {record["dataset"] for record in self.records if record["experiment"] == experiment and record["cases"]}
        order = list(NAMES)
        return sorted(there, key=lambda name: (order.index(name) if name in order else len(order), name))

    def methods(self, experiment: str, dataset: str) -> list[str]:
        """Return the methods with a figure of an experiment on a dataset, in the catalogue's order."""
        there = {
            record["method"]
            for record in self.records
            if (record["experiment"], record["dataset"]) == (experiment, dataset) and record["cases"]
        }
        return [method for method in EXPERIMENTS[experiment].methods if method in there]

    def cases(self, experiment: str, dataset: str) -> list[str]:
        """Return the cases of an experiment on a dataset, in the order of measurement."""
        return list(
            dict.fromkeys(
                case
                for record in self.records
                if (record["experiment"], record["dataset"]) == (experiment, dataset)
                for case in record["cases"]
            )
        )

    def size(self, dataset: str) -> dict[str, int] | None:
        """Return nodes, edges, … of a dataset."""
        return next((r["graph"] for r in self.records if r["dataset"] == dataset and "graph" in r), None)

    @property
    def unfinished(self) -> list[tuple[Unit, str, list[str]]]:
        """Units that ran out of time or died, with their outcome and finished cases."""
        return [(Unit.of(r), r["outcome"], list(r["cases"])) for r in self.records if r["outcome"] != MEASURED]

    def absent(self, experiment: str, dataset: str, method: str) -> str:
        """Explain why a method has no figure: the outcome of its unit, or that it was not measured or planned."""
        for unit, outcome, _ in self.unfinished:
            if (unit.experiment, unit.dataset, unit.method) == (experiment, dataset, method):
                return outcome
        return "not measured yet" if plan((experiment,), (dataset,), (method,), seeds=1) else "not planned"

    def percent_or_why(self, experiment: str, dataset: str, method: str, case: str, figure: str) -> str:
        """Return a figure in percent over the seeds, or why it is missing."""
        found = self.values(experiment, dataset, method, case, figure)
        return percent(found) if found else self.absent(experiment, dataset, method)

    def missing(self) -> list[tuple[str, str, dict[tuple[int, int], list[str]]]]:
        """Return the methods with fewer units than planned, by (measured, planned), for each experiment and dataset."""
        there = {Unit.of(record) for record in self.records}
        planned: dict[tuple[str, str], dict[str, list[bool]]] = {}
        for unit in plan():
            planned.setdefault((unit.experiment, unit.dataset), {}).setdefault(unit.method, []).append(unit in there)
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
    """Return a dataset's name in `NAMES`, or its own."""
    return NAMES.get(dataset, dataset)


def of_method(method: str) -> str:
    """Return a method's name in `_METHOD_NAMES`, or its own."""
    return _METHOD_NAMES.get(method, method)


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with `digits` digits, thousands in full, or as a power of ten if that is shorter."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e5:
        return f"{value:.{digits - 2}e}"
    return f"{value:.{digits}g}" if abs(value) < 999.5 else f"{value:,.{digits - 3}f}"


def apart(values: Sequence[float], unit: str = "") -> list[str]:
    """Format each as `number` does, with enough digits to keep different values distinct."""
    for digits in range(3, 8):
        texts = [number(each, digits) for each in values]
        if len(set(texts)) == len(set(values)):
            break
    return [each + unit for each in texts]


def spread(values: Sequence[float]) -> str:
    """Format the mean and, for several values, the standard deviation; with their count if seeds are missing.

    The deviation has the decimals of the mean, or one digit if it would round to zero. Beside a power of ten it has its
    own digits.
    """
    if len(values) < 2:
        return number(values[0]) if values else "–"
    mean = fmean(values)
    if not 1e-3 <= abs(mean) < 1e5:
        return number(mean) + _deviation(values, number)
    exponent = int(f"{mean:.2e}".partition("e")[2])
    decimals = max(0, 2 - exponent)

    def fixed(value: float) -> str:
        rounded = round(value, decimals)
        return f"{rounded:,.{decimals}f}" if rounded else f"{value:.1g}"

    return fixed(mean) + _deviation(values, fixed)


def percent(values: Sequence[float]) -> str:
    """Format like `spread`, but in percent and each with one decimal."""
    return _tenths(fmean(values)) + _deviation(values, _tenths) if values else "–"


def _deviation(values: Sequence[float], written: Callable[[float], str]) -> str:
    if len(values) < 2:
        return ""
    return f" ± {written(stdev(values))}" + (f" ({len(values)})" if len(values) < SEEDS else "")


def _tenths(value: float) -> str:
    return f"{100 * value:.1f}"


def shared(*figures: dict[int, float]) -> list[tuple[float, ...]]:
    """Return several figures of every seed that has all of them, a tuple for each seed."""
    seeds = set.intersection(*(set(each) for each in figures))
    return [tuple(each[seed] for each in figures) for seed in sorted(seeds)]


def paired(*figures: dict[int, float]) -> tuple[list[float], int]:
    """Return means of several figures over their shared seeds, and the number of seeds; no means without any."""
    columns = shared(*figures)
    return [fmean(each) for each in zip(*columns, strict=True)], len(columns)


def repair_to_retraining(results: Results, dataset: str, share: str) -> float | None:
    """Return the repair's own time as a multiple of retraining, each in units of Lethe's projection in its own run."""
    methods = LETHE, REPAIRED, RETRAINED
    times, _ = paired(*(results.by_seed("closeness", dataset, each, share, "times_lethe") for each in methods))
    return (times[1] - times[0]) / times[2] if times else None


def by(seeds: int) -> str:
    """Name a number of seeds."""
    return "one seed" if seeds == 1 else f"{seeds} seeds"
