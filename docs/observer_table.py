"""Generates the tables of observer.md from the committed results.

python -m docs.observer_table     rewrites them; a test fails while they are out of date
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.observer.attacked import ASKED, ROUNDINGS, Case
from benchmarks.observer.intervals import bootstrap, wilson
from benchmarks.observer.measure import RESULTS
from benchmarks.records import SUFFIX, read_all
from docs.settings_table import between_marks

PAGE = Path(__file__).parent / "observer.md"
_NAMES = {"cora": "Cora", "pubmed": "Pubmed", "ogbn_arxiv_llm": "arXiv"}
_HEAD = (
    "deleted",
    "asked",
    "decimals",
    "first by the filter, %",
    "first by neighbours, %",
    "chance, %",
    "regression",
    "who knows the rounding",
    "above the mean row by",
    "where answers changed",
    "the mean row",
)


def tables(folder: Path = RESULTS) -> str:
    """Return one table for each measured dataset, loss and certificate, pooling the seeds."""
    return "\n".join(_table(units) for units in _measured(folder))


def defaults(folder: Path = RESULTS) -> str:
    """Return rows for observers that may query all nodes and few nodes: one node deleted, answers with 2 decimals."""
    head = ("graph", "loss", "weights", "asked", *_HEAD[3:])
    lines = [f"| {' | '.join(head)} |", f"| --- | --- | --- |{' ---: |' * (len(head) - 3)}"]
    for units in _measured(folder):
        first = units[0]
        weights = "as they are" if first["certify"] is None else f"certified, {first['certify']}"
        for asked in ("all", "100"):
            cells = _cells(_pooled(units, str(Case(1, asked, "2"))))
            lines.append(f"| {' | '.join([_NAMES[first['dataset']], first['loss'], weights, asked, *cells])} |")
    return "\n".join(lines) + "\n"


def with_current_table(page: str) -> str:
    """Return `page` with the current tables. Raises ValueError if a mark is missing."""
    return between_marks(between_marks(page, "observer", tables()), "defaults", defaults())


def _measured(folder: Path) -> list[list[dict[str, Any]]]:
    """Return the results of each dataset, loss and certificate."""
    found = read_all(folder.glob(f"*{SUFFIX}"))
    units = sorted(
        {(one["dataset"], one["loss"], one["certify"]) for one in found},
        key=lambda unit: (list(_NAMES).index(unit[0]), unit[1], unit[2] or ""),
    )
    return [[one for one in found if (one["dataset"], one["loss"], one["certify"]) == unit] for unit in units]


def _table(units: Sequence[dict[str, Any]]) -> str:
    first, graph = units[0], units[0]["graph"]
    certified = "" if first["certify"] is None else f", certified at {first['certify']}"
    dates = sorted({one["date"] for one in units})
    lines = [
        f"### {_NAMES[first['dataset']]}, {first['loss']}{certified}\n",
        f"{graph['nodes']:,} nodes, {graph['public']:,} of them public, {graph['candidates']:,} candidates; "
        f"{first['device']}, {' and '.join(dates)}, {_counts(units)}.\n",
        f"| {' | '.join(_HEAD)} |",
        f"|{' ---: |' * len(_HEAD)}",
    ]
    for deleted in _deleted(units):
        for asked in ASKED:
            for rounding in ROUNDINGS:
                cells = _cells(_pooled(units, str(Case(deleted, asked, rounding))))
                lines.append(f"| {deleted} | {asked} | {rounding} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _pooled(units: Sequence[dict[str, Any]], case: str) -> dict[str, list[float]]:
    """Return the figures of a case, pooled over seeds."""
    return {name: [value for one in units for value in one["cases"][case][name]] for name in units[0]["cases"][case]}


def _deleted(units: Sequence[dict[str, Any]]) -> list[int]:
    """Return the sizes of deletions."""
    return sorted({int(name.partition(" ")[0]) for name in units[0]["cases"]})


def _counts(units: Sequence[dict[str, Any]]) -> str:
    """Return the number of deletions of each size."""
    counts = {
        deleted: sum(len(one["cases"][str(Case(deleted, "all", "full"))]["mean"]) for one in units)
        for deleted in _deleted(units)
    }
    return " and ".join(f"{count} deletions of {deleted}" for deleted, count in counts.items())


def _cells(values: dict[str, list[float]]) -> list[str]:
    above = [one - mean for one, mean in zip(values["rehearsed"], values["mean"], strict=True)]
    return [
        _share(values["filter_first"]),
        _share(values["neighbours_first"]),
        f"{100 * fmean(values['chance']):.2f}",
        _mean(values["regression"]),
        _mean(values["rehearsed"]),
        _mean(above, "{:+.2f}".format),
        _mean(values["changed"]),
        _mean(values["mean"]),
    ]


def _share(values: Sequence[float]) -> str:
    low, high = wilson(sum(values), len(values))
    return f"{100 * fmean(values):.0f} ({100 * low:.0f} to {100 * high:.0f})"


def _mean(values: Sequence[float], write: Callable[[float], str] = "{:.2f}".format) -> str:
    """Format a mean with its interval; empty if nothing was measured."""
    if None in values:
        return ""
    low, high = bootstrap(values)
    return f"{write(fmean(values))} ({write(low)} to {write(high)})"


if __name__ == "__main__":
    PAGE.write_text(with_current_table(PAGE.read_text()))
