"""What an observer can tell: published intervals, one table, and a Lethe attacked over HTTP."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.observer import measure
from benchmarks.observer.attacked import ASKED, BATCH, TOLD, Case
from benchmarks.observer.intervals import bootstrap, wilson
from benchmarks.observer.measure import Unit, measured
from docs import observer_table


@pytest.mark.parametrize(
    ("found", "tries", "interval"),
    # Newcombe (1998), "Two-sided confidence intervals for the single proportion", table I, method 3.
    [(81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)), (1, 29, (0.0061, 0.1718))],
)
def test_intervals_of_shares_are_wilsons(found: int, tries: int, interval: tuple[float, float]) -> None:
    assert wilson(found, tries) == pytest.approx(interval, abs=5e-5)


def test_intervals_of_means_are_about_the_means() -> None:
    assert bootstrap([0.25] * 7) == (0.25, 0.25)
    low, high = bootstrap([float(number) for number in range(100)])
    assert (low, high) == pytest.approx((49.5 - 1.96 * 2.887, 49.5 + 1.96 * 2.887), abs=0.2)


def test_a_table_pools_seeds(tmp_path: Path) -> None:
    for seed, cosine in enumerate((0.2, 0.4)):
        figures: dict[str, list[Any]] = {
            name: [cosine] * 2
            for name in ("chance", "filter_first", "neighbours_first", "rehearsed", "changed", "mean")
        } | {"regression": [None] * 2}
        unit = Unit("cora", "ovr", "1,1e-4", seed)
        unit.file(tmp_path).parent.mkdir(exist_ok=True)
        about = {
            "dataset": unit.dataset, "loss": unit.loss, "certify": unit.certify, "date": "2026-11-24", "device": "X",
            "graph": {"nodes": 1000, "public": 900, "candidates": 100},
            "cases": {str(Case(1, asked, told)): figures for asked in ASKED for told in TOLD},
        }  # fmt: skip
        unit.file(tmp_path).write_text(json.dumps(about))
    text = observer_table.tables(tmp_path)
    assert "### Cora, ovr, certified at 1,1e-4" in text
    assert "4 deletions of 1." in text
    rows = [line for line in text.splitlines() if line.startswith("| 1 |")]
    assert len(rows) == len(ASKED) * len(TOLD)
    low, high = wilson(1.2, 4)
    assert rows[0].startswith(f"| 1 | 100 | full | 30 ({100 * low:.0f} to {100 * high:.0f}) |")
    assert "|  | 0.30 (0.20 to 0.40) | +0.00 (+0.00 to +0.00) |" in rows[0]
    first, few = observer_table.defaults(tmp_path).splitlines()[2:]
    assert first.startswith("| Cora | ovr | certified, 1,1e-4 | all | 30 (")
    assert few.startswith("| Cora | ovr | certified, 1,1e-4 | 100 | 30 (")


@pytest.mark.slow
def test_a_running_lethe_is_attacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_SINGLE", 2)
    monkeypatch.setattr(measure, "_BATCHES", 1)
    found = measured(Unit("synthetic:n=300,d=12,classes=3,seed=1", "ovr", None, 0))
    cases = found["cases"]
    assert isinstance(cases, dict)
    assert set(cases) == {str(Case(deleted, asked, told)) for deleted in (1, BATCH) for asked in ASKED for told in TOLD}
    assert all(len(values) == (2 if case.startswith("1 ") else 1) for case in cases for values in cases[case].values())
