"""Check whether nodes and edges may join a graph, and whether what nodes get fits the model."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from projector.graph.columns import NamedColumns, NodeFeatures, UnfitValue, numbers_of
from service.domain.formats import plural
from service.domain.kinds import RequestKind, Target
from service.domain.records import NodeContent
from service.errors import MOST_FAULTS, Conflict, InvalidRequest, UnknownNodes
from service.predictions.facts import ModelFacts
from service.requests.deletable import Deletions, refuse_public


class UnfitFeatures(InvalidRequest):
    """Features have other columns than the model; `extra["unfit"]` lists the first of the nodes."""

    slug: ClassVar[str] = "unfit-features"
    title: ClassVar[str] = "Features do not fit the model"


class UnfitLabels(InvalidRequest):
    """Labels are not classes, or targets, of the model; `extra["unfit"]` lists the first of the nodes."""

    slug: ClassVar[str] = "unfit-labels"
    title: ClassVar[str] = "Labels do not fit the model"


class UnfitWeights(InvalidRequest):
    """Edges have weights, and the model's graph has none; `extra["unfit_edges"]` lists the first of them."""

    slug: ClassVar[str] = "unfit-weights"
    title: ClassVar[str] = "The graph has no weights"


class KnownNodes(Conflict):
    """Nodes to add are in the graph; `extra["known"]` lists all of them."""

    slug: ClassVar[str] = "known-nodes"
    title: ClassVar[str] = "Nodes are in the graph"


class KnownEdges(Conflict):
    """Edges to add are in the graph; `extra["known_edges"]` lists all of them."""

    slug: ClassVar[str] = "known-edges"
    title: ClassVar[str] = "Edges are in the graph"


class DeletedNodes(Conflict):
    """Nodes were deleted on request; `extra["deleted"]` lists all of them."""

    slug: ClassVar[str] = "deleted-nodes"
    title: ClassVar[str] = "Nodes were deleted"


def require_fitting(content: Mapping[str, NodeContent], model: ModelFacts) -> None:
    """Raise UnfitFeatures or UnfitLabels unless `content` has the columns and the classes, or targets, of `model`."""
    given = {node: each.features for node, each in content.items() if each.features is not None}
    require_columns(given, model, f"`unfit` lists the first {MOST_FAULTS} nodes. Nothing was accepted.")
    labels = [node for node, each in content.items() if not _has_label(each, model)]
    if not labels:
        return
    if model.regression is not None:
        wanted = f"a list of {len(model.classes)} numbers" if len(model.classes) > 1 else "a number"
        raise UnfitLabels(
            f"The labels of {len(labels)} of the nodes are not targets of the model {model.name}.",
            f"Give each {wanted}; `unfit` lists the first {MOST_FAULTS} of the nodes. Nothing was accepted.",
            unfit=labels[:MOST_FAULTS],
        )
    raise UnfitLabels(
        f"The labels of {len(labels)} of the nodes are not classes of the model {model.name}.",
        f"Give one of the classes in `GET /model`; `unfit` lists the first {MOST_FAULTS} of the nodes. A new class "
        "needs a newly trained model. Nothing was accepted.",
        unfit=labels[:MOST_FAULTS],
    )


def require_weights(weights: Mapping[tuple[str, str], float], model: ModelFacts) -> None:
    """Raise UnfitWeights for `weights` other than 1 if the graph of `model` has none."""
    if weights and not model.weighted:
        raise UnfitWeights(
            f"{plural(len(weights), 'edge has', 'edges have')} a weight other than 1, and the graph of the model "
            f"{model.name} has no weights.",
            f"Leave the weights out, or train a model on a weighted graph; `unfit_edges` lists the first {MOST_FAULTS} "
            "of the edges. Nothing was accepted.",
            unfit_edges=list(weights)[:MOST_FAULTS],
        )


def require_columns(given: Mapping[Any, NodeFeatures], model: ModelFacts, remedy: str) -> None:
    """Raise UnfitFeatures, with the keys of `given`, for features that do not have the columns of `model`."""
    columns, unfit, first = NamedColumns.of(model.columns), [], None
    for key, features in given.items():
        try:
            numbers_of(features, columns, model.features)
        except UnfitValue as error:
            unfit.append(key)
            first = first or error
    if first is not None:
        raise UnfitFeatures(
            f"The features of {len(unfit)} of the nodes do not have the {model.features} columns of the model "
            f"{model.name}. {first.detail}",
            f"{first.remedy} {remedy}",
            unfit=unfit[:MOST_FAULTS],
        )


def _has_label(content: NodeContent, model: ModelFacts) -> bool:
    label = content.label
    if label is None:
        return True
    if model.regression is None:
        return label in model.classes
    return not isinstance(label, str) and len(label) == len(model.classes)


async def require_joinable(
    deletions: Deletions, kind: RequestKind, subjects: Sequence[Target], content: Mapping[str, NodeContent]
) -> None:
    """Refuse by name an addition or a correction that cannot be applied to the graph as it is and as it is queued.

    For keys that may know of deletions. If no version can be read, everything passes: the unlearner checks later.
    Raises KnownNodes, KnownEdges, DeletedNodes, UnknownNodes, PublicNodes and Unavailable.
    """
    adds = kind is RequestKind.ADDITION
    nodes = [subject for subject in subjects if isinstance(subject, str)]
    edges = [subject for subject in subjects if not isinstance(subject, str)]
    ends = list(dict.fromkeys(end for edge in edges for end in edge if end not in content))
    # First: whatever the reader no longer has by now already has its tombstone.
    found = await deletions.look_up([*nodes, *ends], edges)
    if found is None:
        return
    needed = ends if adds else nodes
    deleted, joining = await deletions.tombstones.states([node for node in [*nodes, *ends] if node not in found.live])
    if adds:
        _refuse_known(deletions.model, [node for node in nodes if node in found.live])
    gone = [
        node
        for node in [*nodes, *ends]
        if node in deleted and node not in joining and not (adds and node in content and content[node].rejoin)
    ]
    unknown = [node for node in needed if not (node in found.live or node in deleted or node in joining)]
    if unknown:
        raise UnknownNodes(
            f"{plural(len(unknown), 'node is', 'nodes are')} not in the model {deletions.model}.",
            "Check the ids in `unknown`, or add them first. Nothing was accepted.",
            unknown=unknown,
        )
    if gone:
        raise DeletedNodes(
            f"{plural(len(gone), 'node was', 'nodes were')} deleted on request.",
            "Leave out those in `deleted`. If a person came back, add the node with `rejoin`. Nothing was accepted.",
            deleted=gone,
        )
    there = [edge for edge, is_present in zip(edges, found.edges, strict=True) if is_present]
    if there:
        raise KnownEdges(
            f"{len(there)} of the edges are in the graph of the model {deletions.model}.",
            "Leave out those in `known_edges`. Nothing was accepted.",
            known_edges=there,
        )
    if not adds:
        refuse_public(found.public, deletions.model, nodes)


def _refuse_known(model: str, known: Sequence[str]) -> None:
    if known:
        raise KnownNodes(
            f"{len(known)} of the nodes are in the model {model}.",
            "Leave out those in `known`; POST /corrections replaces their features and labels. Nothing was accepted.",
            known=known,
        )
