"""Nodes declared public are never deleted: a request that names any is refused whole."""

from collections.abc import Collection, Sequence
from typing import ClassVar

from service.domain.kinds import Target, ends_of
from service.errors import Conflict


class PublicNodes(Conflict):
    """The model's MLP was trained on what is named; `extra["public"]` or `extra["public_edges"]` lists all of it."""

    slug: ClassVar[str] = "public-nodes"
    title: ClassVar[str] = "Public nodes are never deleted"


def is_public(public: Collection[str], subject: Target) -> bool:
    """Whether this is one of the `public` nodes, or an edge between two of them.

    An edge with one public end may be deleted: it is the other end's as well.
    """
    return all(end in public for end in ends_of(subject))


def refuse_public(named_public: Collection[str], model: str, subjects: Sequence[Target]) -> None:
    """Raises PublicNodes when any of `subjects` is one of the nodes `named_public`, or an edge between two of them."""
    public = [subject for subject in subjects if is_public(named_public, subject)]
    nodes = [subject for subject in public if isinstance(subject, str)]
    edges = [subject for subject in public if not isinstance(subject, str)]
    reason = f"the MLP of the model {model} was trained on public nodes and can never forget them."
    instead = "nothing was accepted. To forget them, train and import a model without them."
    if nodes:
        raise PublicNodes(
            f"{len(nodes)} of the nodes are public: {reason}",
            f"Remove the nodes listed in `public`; {instead}",
            public=nodes,
        )
    if edges:
        raise PublicNodes(
            f"{len(edges)} of the edges join two public nodes: {reason}",
            f"Remove the edges listed in `public_edges`; {instead}",
            public_edges=edges,
        )
