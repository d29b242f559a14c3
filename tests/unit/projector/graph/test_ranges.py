"""Rows of a CSR matrix, a few at a time."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from projector.graph.ranges import parts_of_rows


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 20))
def test_every_row_is_in_one_part_and_none_but_a_single_row_is_larger_than_asked(sizes: list[int], most: int) -> None:
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int32)
    parts = list(parts_of_rows(starts, most))
    assert [row for first, end in parts for row in range(first, end)] == list(range(len(sizes)))
    assert all(starts[end] - starts[first] <= most or end == first + 1 for first, end in parts)


def test_the_last_entries_that_an_index_of_32_bits_reaches_are_in_one_part() -> None:
    largest = np.iinfo(np.int32).max
    starts = np.array([0, largest - 20, largest - 10, largest], dtype=np.int32)
    assert list(parts_of_rows(starts)) == [(0, 1), (1, 3)]
