"""Columns of a table as features: which columns of X each of them fills, and values by name as numbers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias

from projector.errors import GraphError

#: A number, a category by its name, or the numbers of a list.
Value: TypeAlias = float | str | tuple[float, ...]
#: Features of a node: a number for each column of X, or values by the names of columns; columns of X without names have
#: their numbers, from 0.
NodeFeatures: TypeAlias = tuple[float, ...] | Mapping[str, Value]


#: The number of a column.
_NUMBER = re.compile("0|[1-9][0-9]{0,8}")


class ColumnKind(StrEnum):
    """How a column of a table becomes columns of X."""

    #: As it is, in one column; true and false are 1 and 0.
    NUMBER = "number"
    #: One column of zeros and ones for each category.
    CATEGORY = "category"
    #: One column for each place in the list, such as an embedding.
    LIST = "list"


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    kind: ColumnKind
    #: Number of columns of X that it fills.
    width: int = 1
    #: Names of the categories, one for each column of X.
    categories: tuple[str, ...] = ()


class UnfitValue(GraphError):
    """A value by name does not fit the columns; `detail` names the column and may name the value."""


@dataclass(frozen=True)
class NamedColumns:
    """The columns of a table, which fill the first columns of X in this order."""

    columns: tuple[Column, ...]

    @property
    def width(self) -> int:
        """Number of columns of X that they fill."""
        return sum(column.width for column in self.columns)

    def numbers(self, named: Mapping[str, Value]) -> dict[int, float]:
        """Return values by name as numbers by column of X. Columns that are not named are 0. Raises UnfitValue."""
        found: dict[int, float] = {}
        for name, value in named.items():
            place = self._places.get(name)
            if place is None:
                raise UnfitValue(f"The model has no column {name!r}.", f"Its columns are {self.listed}.")
            column, first = place
            found |= self._cells(column, first, value)
        return found

    @cached_property
    def listed(self) -> str:
        """The first names, for an error message."""
        names = [repr(column.name) for column in self.columns]
        return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")

    @cached_property
    def _places(self) -> dict[str, tuple[Column, int]]:
        places, first = {}, 0
        for column in self.columns:
            places[column.name] = column, first
            first += column.width
        return places

    @cached_property
    def _categories(self) -> dict[str, dict[str, int]]:
        return {
            column.name: {category: place for place, category in enumerate(column.categories)}
            for column in self.columns
            if column.kind is ColumnKind.CATEGORY
        }

    @classmethod
    def of(cls, columns: tuple[Column, ...] | None) -> "NamedColumns | None":
        """Return these columns; None for none."""
        return None if columns is None else cls(columns)

    def _cells(self, column: Column, first: int, value: Value) -> dict[int, float]:
        match column.kind, value:
            case ColumnKind.NUMBER, int() | float():
                return {first: float(value)}
            case ColumnKind.CATEGORY, str():
                place = self._categories[column.name].get(value)
                if place is None:
                    raise UnfitValue(
                        f"{value!r} is not a category of the column {column.name!r}.",
                        "Give a category that the model was trained with, or leave the column out: all its categories "
                        "are then 0.",
                    )
                return {first + place: 1.0}
            case ColumnKind.LIST, tuple() if len(value) == column.width:
                return {first + place: float(number) for place, number in enumerate(value)}
        wanted = {
            ColumnKind.NUMBER: "a number",
            ColumnKind.CATEGORY: "the name of a category",
            ColumnKind.LIST: f"a list of {column.width} numbers",
        }
        raise UnfitValue(f"The column {column.name!r} takes {wanted[column.kind]}.", "Correct the value.")


def numbers_of(features: NodeFeatures, columns: NamedColumns | None, width: int) -> dict[int, float]:
    """Return the features of a node that are not 0 by column of X, of `width`.

    Raises UnfitValue. A model whose columns have names takes values by name, another one by number.
    """
    if not isinstance(features, Mapping):
        if len(features) != width:
            raise UnfitValue(f"{len(features)} numbers are given for {width} columns.", "Give one number per column.")
        return {column: value for column, value in enumerate(features) if value != 0}
    found = _numbered(features, width) if columns is None else columns.numbers(features)
    return {column: value for column, value in found.items() if value != 0}


def _numbered(features: Mapping[str, Value], width: int) -> dict[int, float]:
    """Return values by the numbers of columns, below `width`. Raises UnfitValue."""
    found: dict[int, float] = {}
    for name, value in features.items():
        if not _NUMBER.fullmatch(name) or int(name) >= width:
            raise UnfitValue(
                f"The model has no column {name!r}.", f"Its columns have no names, but numbers from 0 to {width - 1}."
            )
        if not isinstance(value, int | float):
            raise UnfitValue(f"The column {name!r} takes a number.", "Correct the value.")
        found[int(name)] = float(value)
    return found
