"""The export of the log: one JSON document a line, for `verify` and for whoever keeps a copy. No I/O.

The first line names the form. A line with a leaf has its text, its hash, the root it gave the tree, its event as the
database has it, null when it has none, and what opens the figures that it commits to where it does not tell them; a
checkpoint follows the last leaf it covers. Then come events that have no leaf, which there should be none of, and a
last line with the counts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from service.audit.canonical import Document

#: The first member of the first line.
FORMAT = "lethe-export/1"


@dataclass(frozen=True)
class ExportedLeaf:
    """A leaf as the database has it."""

    index: int
    text: str
    hash: bytes
    root: bytes
    #: `leaf.event_members` of its event; None when there is none.
    event: Document | None
    #: What opens the figures that the leaf commits to; None where it tells them, or has none.
    opening: Document | None = None


@dataclass(frozen=True)
class ExportedCheckpoint:
    """A checkpoint as the database has it."""

    size: int
    note: str


def head(origin: str | None, exported_at: str) -> Document:
    """The first line."""
    return {"format": FORMAT, "log": origin, "exported_at": exported_at}


def lines(leaves: Iterable[ExportedLeaf], checkpoints: Iterable[ExportedCheckpoint]) -> Iterator[Document]:
    """A part of the export: `leaves` and `checkpoints`, each in order, every checkpoint after the leaves it covers."""
    waiting = iter(checkpoints)
    checkpoint = next(waiting, None)
    for leaf in leaves:
        while checkpoint is not None and checkpoint.size <= leaf.index:
            yield {"checkpoint": checkpoint.note}
            checkpoint = next(waiting, None)
        yield {
            "index": leaf.index,
            "leaf": leaf.text,
            "hash": leaf.hash.hex(),
            "root": leaf.root.hex(),
            "event": leaf.event,
            **({} if leaf.opening is None else {"opening": leaf.opening}),
        }
    while checkpoint is not None:
        yield {"checkpoint": checkpoint.note}
        checkpoint = next(waiting, None)


def unlogged(event: Document) -> Document:
    """The line of an event that has no leaf."""
    return {"event": event}


def end(leaves: int, checkpoints: int) -> Document:
    """The last line."""
    return {"end": True, "leaves": leaves, "checkpoints": checkpoints}
