"""Nodes declared public are never deleted: a request that names any is refused whole."""

from collections.abc import Sequence
from typing import ClassVar

from service.domain.kinds import Target
from service.errors import Conflict
from service.publication.reader import Reader


class PublicNodes(Conflict):
    """The model's MLP was trained on what is named; `extra["public"]` or `extra["public_edges"]` lists all of it."""

    slug: ClassVar[str] = "public-nodes"
    title: ClassVar[str] = "Public nodes are never deleted"


def is_public(reader: Reader, subject: Target) -> bool:
    """Whether this is a public node, or an edge between two of them.

    An edge with one public end may be deleted: it is the other end's as well.
    """
    return all(reader.is_public(end) for end in ([subject] if isinstance(subject, str) else subject))


def refuse_public(reader: Reader, model: str, subjects: Sequence[Target]) -> None:
    """Raises PublicNodes when any of `subjects` is public."""
    public = [subject for subject in subjects if is_public(reader, subject)]
    nodes = [subject for subject in public if isinstance(subject, str)]
    edges = [subject for subject in public if not isinstance(subject, str)]
    reason = f"the MLP of the model {model} was trained on nodes declared public, and can never forget them."
    instead = "nothing of this request was accepted. To forget them, train and import a model without them."
    if nodes:
        raise PublicNodes(
            f"{len(nodes)} of the nodes named are public: {reason}",
            f"Leave out the nodes that `public` lists; {instead}",
            public=nodes,
        )
    if edges:
        raise PublicNodes(
            f"{len(edges)} of the edges named join two public nodes: {reason}",
            f"Leave out the edges that `public_edges` lists; {instead}",
            public_edges=edges,
        )
