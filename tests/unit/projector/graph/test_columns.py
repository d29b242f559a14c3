"""Columns by name: what training read from a table is what an addition by name brings."""

from typing import Any

import numpy as np
import pytest

from projector import ModelSpec, fit, from_tables
from projector.graph.columns import NamedColumns, UnfitValue, Value, numbers_of
from tests.support.models.small_graphs import dense
from tests.support.models.users import COLUMNS, users


def as_sent(value: Any) -> Value:
    return tuple(value) if isinstance(value, list) else float(value) if isinstance(value, bool) else value


def test_a_row_by_name_is_the_row_that_training_read() -> None:
    nodes, edges = users()
    graph = from_tables(nodes, edges, **COLUMNS)
    assert graph.columns is not None
    names = [column.name for column in graph.columns.columns]
    assert names == ["age", "country", "premium", "embedding"]
    assert graph.columns.width == graph.num_features == 1 + 4 + 1 + 4
    for row, given in enumerate(nodes.select(names).to_pylist()):
        found = numbers_of({name: as_sent(value) for name, value in given.items()}, graph.columns, graph.num_features)
        wanted = dense(graph.features)[row]
        assert np.array_equal(wanted.nonzero()[0], sorted(found))
        assert all(wanted[place] == value for place, value in found.items())


def test_values_of_0_are_left_out_by_name_as_by_number() -> None:
    columns = from_tables(*users(), **COLUMNS).columns
    given: dict[str, Value] = {"age": 0.0, "embedding": (1.0, 0.0, 0.0, 2.0)}
    assert list(numbers_of(given, columns, 10).values()) == [1.0, 2.0]
    assert numbers_of({"1": 0.0, "2": 3.0}, None, 4) == numbers_of((0.0, 0.0, 3.0, 0.0), None, 4) == {2: 3.0}


def test_a_table_of_nodes_alone_is_a_graph_without_edges() -> None:
    nodes, edges = users()
    given = {**COLUMNS, "features": ["age", "premium", "embedding"]}
    alone, whole = from_tables(nodes, None, **given), from_tables(nodes, edges, **given)
    assert (alone.edges, alone.nodes) == (0, whole.nodes)
    spec = ModelSpec(hops=0)
    assert np.array_equal(fit(alone, spec).weights, fit(whole, spec).weights)


BAD: dict[str, tuple[dict[str, Value], str]] = {
    "an unknown column": ({"height": 1.0}, "no column 'height'"),
    "a column by its number": ({"0": 1.0}, "no column '0'"),
    "an unknown category": ({"country": "XX"}, "'XX' is not a category of the column 'country'"),
    "a number as a category": ({"country": 1.0}, "'country' takes the name of a category"),
    "text as a number": ({"age": "old"}, "'age' takes a number"),
    "a short list": ({"embedding": (1.0, 2.0)}, "'embedding' takes a list of 4 numbers"),
    "a list as a number": ({"age": (1.0,)}, "'age' takes a number"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_value_that_does_not_fit_its_column_is_refused_by_name(case: str) -> None:
    columns = from_tables(*users(), **COLUMNS).columns
    assert isinstance(columns, NamedColumns)
    features, named = BAD[case]
    with pytest.raises(UnfitValue) as refused:
        numbers_of(features, columns, columns.width)
    assert named in str(refused.value)
