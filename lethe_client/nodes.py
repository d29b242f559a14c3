"""Nodes as additions, corrections and predictions of nodes outside the graph name them."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

#: A number for each column of the model, or values by the names of columns; columns without names have numbers, from 0.
#: A value is a number, true or false, a category, or the numbers of a list. Columns that are left out are 0.
Features = Iterable[float] | Mapping[str, float | str | Iterable[float]] | Mapping[int, float]
#: The name of a class, or the target of a regression: a number, or one for each.
Label = str | float | Iterable[float]


class NewNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node to add."""

    id: str
    features: Features
    #: Nodes with a label are trained on.
    label: Label | None = None
    #: Whether it may join although an earlier request deleted it.
    rejoin: bool = False


class Correction(msgspec.Struct, frozen=True, omit_defaults=True):
    """What replaces a node's own; None stays as it is."""

    id: str
    features: Features | None = None
    label: Label | None = None


class OutsideNode(msgspec.Struct, frozen=True):
    """A node to predict that is not in the graph."""

    features: Features
    #: Ids of nodes of the graph.
    neighbours: Sequence[str] = ()


def as_json(node: NewNode | Correction | OutsideNode) -> dict[str, object]:
    """Return the node as a member of a request's body."""
    if isinstance(node, OutsideNode):
        return {"features": _plain(node.features), "neighbours": list(node.neighbours)}
    given = {"id": node.id, "features": node.features, "label": node.label}
    if isinstance(node, NewNode) and node.rejoin:
        given["rejoin"] = True
    return {name: _plain(value) for name, value in given.items() if value is not None}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(column): _value(each) for column, each in value.items()}
    return _value(value) if isinstance(value, Iterable) else value


def _value(value: object) -> object:
    if isinstance(value, str | bool):
        return value
    return [float(number) for number in value] if isinstance(value, Iterable) else float(value)  # type: ignore[arg-type]
