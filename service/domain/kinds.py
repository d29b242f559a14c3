"""The kinds of request: what each names, what of it is taken away, and the words for it.

A new kind is a member of `RequestKind` with its `Rules`, beside a migration by which the database takes it and the
client's `Literal`. One that takes away what no other does, or names what no other names, is a new `Part` or `Names`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from service.domain.formats import number

#: A node's external id, or an edge's two, in either order.
Target = str | tuple[str, str]


def ends_of(target: Target) -> tuple[str, ...]:
    """The node, or the two ends of the edge."""
    return (target,) if isinstance(target, str) else target


def ordered(edge: Sequence[str]) -> tuple[str, str]:
    """An undirected edge by its two ends, the same for both orders."""
    first, second = sorted(edge)
    return first, second


class Names(StrEnum):
    """What a request lists, by the member of its body."""

    NODES = "nodes"
    EDGES = "edges"

    @property
    def one(self) -> str:
        """The noun for one of them."""
        return self.value.removesuffix("s")


class Part(Enum):
    """What of a graph is taken away, from the widest to the narrowest: with a node go its features and its edges."""

    NODES = auto()
    FEATURES = auto()
    EDGES = auto()


class RequestKind(StrEnum):
    """What a request asks Lethe to forget."""

    NODE = "node"
    EDGE = "edge"
    FEATURES = "features"

    @property
    def rules(self) -> "Rules":
        """All that makes it this kind."""
        return RULES[self]


@dataclass(frozen=True)
class Rules:
    """One kind of request."""

    names: Names
    removes: Part
    #: The kind in the model's own record of tombstones. It is on disk: it never changes, nor is it given to another.
    tombstone_code: int
    #: What the request does, for the reader of the API.
    purpose: str
    #: The title of its example there.
    example: str
    #: How it is shown in lists, and what that means.
    label: str
    meaning: str
    #: What was done to the graph, for the request's explanation.
    explanation: str
    #: What had left the model when it was applied, and what is erased from the disk for it.
    applied: str
    erased: str
    #: What one and several are to whoever has never seen a graph: on papers.
    plain: tuple[str, str]
    #: The one thing that goes of what is named; empty where all of it goes.
    only: str = ""

    @property
    def changes_span(self) -> bool:
        """Whether features leave, so that the projection has something to do."""
        return self.removes is not Part.EDGES

    def noun(self, count: int) -> str:
        """What goes of `count` nodes or edges, such as "nodes' features"."""
        owner = self.names.one if count == 1 else self.names.value
        return f"{owner}'{'s' if count == 1 else ''} {self.only}" if self.only else owner

    def in_plain_words(self, count: int) -> str:
        """What is to be forgotten, such as "2 records"."""
        return self.plain[0] if count == 1 else self.plain[1].format(count=number(count))

    def asked(self, counted: str) -> str:
        """What is asked of `counted`, such as "2 nodes"."""
        return f"the {self.only} of {counted}" if self.only else counted


def removing(part: Part) -> tuple[RequestKind, ...]:
    """The kinds that take this part away."""
    return tuple(kind for kind, rules in RULES.items() if rules.removes is part)


def parts_of(names: Names) -> tuple[Part, ...]:
    """What may be taken away of a node, or of an edge, by itself."""
    return tuple(part for part in Part if any(kind.rules.names is names for kind in removing(part)))


RULES: dict[RequestKind, Rules] = {
    RequestKind.NODE: Rules(
        names=Names.NODES,
        removes=Part.NODES,
        tombstone_code=0,
        purpose="Forget nodes: out of the graph, the weights, every prediction and the disk.",
        example="Forget two nodes",
        label="Nodes",
        meaning="Whole nodes: features, label and every edge.",
        explanation="The graph, the predictions and the coefficients no longer contain the deleted nodes.",
        applied="The nodes left the graph, the training set, the coefficients and every prediction.",
        erased="Features, labels, edges",
        plain=("one record", "{count} records"),
    ),
    RequestKind.EDGE: Rules(
        names=Names.EDGES,
        removes=Part.EDGES,
        tombstone_code=2,
        purpose="Forget edges; their nodes stay.",
        example="Forget an edge",
        label="Edges",
        meaning="Single connections; their ends stay.",
        explanation="The deleted edges have left the graph, the degrees and every prediction. An edge carries no "
        "feature, so this asked nothing of the projection and there are no norms to give.",
        applied="The edges left the graph and every prediction.",
        erased="Edges",
        plain=("one link between two records", "{count} links between records"),
    ),
    RequestKind.FEATURES: Rules(
        names=Names.NODES,
        removes=Part.FEATURES,
        tombstone_code=1,
        purpose="Forget the features of nodes; the nodes and their edges stay.",
        example="Forget the features of two nodes",
        label="Features",
        meaning="What is known of nodes; the nodes and their edges stay.",
        explanation="The predictions and the coefficients no longer contain the deleted features. The nodes themselves "
        "stay, with their edges and labels.",
        applied="The features left the coefficients and every prediction; the nodes stay.",
        erased="Features",
        plain=("the stored details of one record", "the stored details of {count} records"),
        only="features",
    ),
}
