"""A part of the report's page: words, tables and pictures."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Picture:
    """One drawn in the page, and what stands below it."""

    svg: Markup
    words: str


@dataclass(frozen=True)
class Table:
    """Rows of words under a head; the first column is left-aligned."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    #: Whether cells are sentences, which wrap.
    prose: bool = False
    #: What is drawn of the rows, above them.
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class Section:
    """What one experiment gave."""

    title: str
    words: str
    #: Each under a name, "" for none.
    tables: Sequence[tuple[str, Table]]
