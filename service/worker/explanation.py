"""What was done for a request, in words for a reader without mathematics."""

from collections.abc import Sequence
from uuid import UUID

from service.domain.records import BatchRecord
from service.domain.states import RequestKind

#: What a request names, one and several.
_NOUNS = {
    RequestKind.NODE: ("node", "nodes"),
    RequestKind.FEATURES: ("node's features", "nodes' features"),
    RequestKind.EDGE: ("edge", "edges"),
}
_UNCHANGED = (
    "The projection changed nothing: every direction of the deleted features is also present in the features "
    "of nodes that remain, so the weights already lay in the span of what remains."
)
_LEFT = {
    RequestKind.NODE: "The graph, the predictions and the coefficients no longer contain the deleted nodes",
    RequestKind.FEATURES: "The predictions and the coefficients no longer contain the deleted features",
}
_STAYS = " The nodes themselves stay, with their edges and labels."


def explain(record: BatchRecord, kind: RequestKind, *, named: int, deleted: int) -> str:
    """What a batch did for a request of `kind` that names `named` nodes or edges, `deleted` of them of its own."""
    said = _of_edges() if kind is RequestKind.EDGE else _of_features(record, kind)
    if deleted == named:
        return said
    rest = named - deleted
    were = "was" if rest == 1 else "were"
    return f"{said} {rest} of the {named} {_NOUNS[kind][1]} that the request names {were} gone already."


def nothing_left(kind: RequestKind, *, named: int, with_node: int, by: Sequence[UUID]) -> str:
    """Why a request had nothing to do: all it names was deleted by the requests `by`."""
    noun = _NOUNS[kind][named > 1]
    along = ""
    if with_node:
        along = f", {'' if named == 1 else f'{with_node} of them '}together with a node"
    requests = "request" if len(by) == 1 else "requests"
    return (
        f"Nothing was left to do: the {noun} that this request names had been deleted by {requests} "
        f"{', '.join(map(str, by))}{along}."
    )


def _of_features(record: BatchRecord, kind: RequestKind) -> str:
    stays = _STAYS if kind is RequestKind.FEATURES else ""
    if record.directions_removed == 0:
        return f"{_UNCHANGED} {_LEFT[kind]}; the weights are not those of retraining.{stays}"
    directions = "one direction" if record.directions_removed == 1 else f"{record.directions_removed} directions"
    supporters = "deleted features" if record.features else "deleted nodes"
    return (
        f"The projection removed {directions} of the weights that only {supporters} had supported "
        f"(together {record.lost_direction_norm_before:.3g} before, {record.lost_direction_norm_after:.3g} after). "
        f"The weights now lie in the span of the remaining nodes' features; they are not those of retraining.{stays}"
    )


def _of_edges() -> str:
    return (
        "The deleted edges have left the graph, the degrees and every prediction. An edge carries no feature, so this "
        "asked nothing of the projection and there are no norms to give; the weights were trained with these edges and "
        "are not those of retraining."
    )
