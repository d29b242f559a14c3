"""Peaks of workers are compared with their formulas."""

import pytest

from benchmarks.performance.scale.workers import ALLOWED, Row, excesses

pytestmark = pytest.mark.ci


def row(*peaks: int) -> Row:
    return Row("cora", len(peaks), {}, {}, {}, peaks, peaks, (), peaks, (1e9, *[5e8] * (len(peaks) - 1)), 0.0)


def test_a_worker_may_exceed_its_formula_by_the_allocator_alone() -> None:
    assert excesses(row(1_000_000_000 + ALLOWED, 500_000_000 + ALLOWED, 100_000)) == []
    (line,) = excesses(row(1_000_000_000, 500_000_000, 500_000_001 + ALLOWED))
    assert line == f"cora, worker 3 of 3: {500_000_001 + ALLOWED:,} bytes, and not 500,000,000."
