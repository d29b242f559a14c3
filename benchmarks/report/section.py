"""A part of the report's page: words, tables and pictures."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Picture:
    """A drawing and its caption."""

    svg: Markup
    words: str


@dataclass(frozen=True)
class Table:
    """Rows of text under a header; the first column is left-aligned."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    #: Whether cells are sentences, which wrap.
    prose: bool = False
    #: Pictures of the rows, shown above them.
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class Section:
    """The results of one experiment."""

    title: str
    words: str
    #: Tables under their names; "" for none.
    tables: Sequence[tuple[str, Table]]
