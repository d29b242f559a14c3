"""recheck: its messages for figures that the log has, has differently, or lacks."""

import pytest

from service.cli.audit_recheck import compared
from service.domain.records import Pointer
from service.log.leaves import ServedFigures
from service.unlearner.measurement import Measured

POINTER = Pointer("tiny", 4, 1, "4-1", "a" * 64, "b" * 64)


@pytest.mark.parametrize(
    ("recorded", "written", "measured", "expected"),
    [
        (7, 7, 7, (7, True)),
        (8, 7, 7, (8, False)),
        (7, 7, 6, (7, False)),
        (7, 6, 7, (7, False)),
        # As after an import by an early version: the version's agreement with itself is not a record.
        (None, 7, 7, (None, None)),
        (None, 7, 6, (None, False)),
    ],
)
def test_a_rank_is_compared_with_the_log_and_with_the_version(
    recorded: int | None, written: int, measured: int, expected: tuple[int | None, bool | None]
) -> None:
    now = Measured("b" * 64, measured, written, live_nodes=9, span_residual=None, distance_bound_relative=None)
    figures = ServedFigures((4, None), recorded, None, None)
    [rank] = [line for line in compared(POINTER, figures, now) if line.name == "rank"]
    assert (rank.recorded, rank.is_same) == expected
