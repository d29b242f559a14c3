"""The kinds of request: what each lists, what it removes, and how it is described.

A new kind needs a member of `RequestKind` with its `Rules`, a migration that makes the database accept it, and a value
in the client's `Literal`. Add a `Part` if it removes something new, and a `Names` if it lists something new.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from service.domain.formats import number, plural
from service.domain.scopes import Scope

#: A node's external id, or an edge's two, in either order.
Target = str | tuple[str, str]


def ends_of(target: Target) -> tuple[str, ...]:
    """Return the node, or the two ends of the edge."""
    return (target,) if isinstance(target, str) else target


def ordered(edge: Sequence[str]) -> tuple[str, str]:
    """Return an undirected edge by its sorted ends, so that both orders compare equal."""
    first, second = sorted(edge)
    return first, second


class Names(StrEnum):
    """The items that a request lists, by the member of its body."""

    NODES = "nodes"
    EDGES = "edges"

    @property
    def one(self) -> str:
        """The singular noun."""
        return self.value.removesuffix("s")


class Part(Enum):
    """Parts of a graph that requests remove, widest first: removing a node also removes its features and edges."""

    NODES = auto()
    FEATURES = auto()
    LABELS = auto()
    EDGES = auto()


class RequestKind(StrEnum):
    """What a request asks Lethe to forget."""

    NODE = "node"
    EDGE = "edge"
    FEATURES = "features"
    LABEL = "label"
    ADDITION = "addition"
    CORRECTION = "correction"

    @property
    def rules(self) -> "Rules":
        """The rules of this kind."""
        return RULES[self]


@dataclass(frozen=True)
class Rules:
    """Rules and texts of one kind of request."""

    names: Names
    #: None for a kind by which something joins.
    removes: Part | None
    #: Code of the kind in the model's own record of tombstones. It is on disk, so never change or reuse it.
    tombstone_code: int | None
    #: What the request does, for API readers.
    purpose: str
    #: Title of its example there.
    example: str
    #: Label in lists, and its explanation.
    label: str
    meaning: str
    #: What was done to the graph, for the request's explanation.
    explanation: str
    #: What left the model when the request was applied, and what is erased from disk.
    applied: str
    erased: str
    #: Singular and plural for readers who have never seen a graph, on papers.
    plain: tuple[str, str]
    #: The part removed, if not all of a target; else empty.
    only: tuple[str, str] | None = None
    #: Singular and plural of what it lists, if not simply nodes or edges.
    listed: tuple[str, str] | None = None

    @property
    def nouns(self) -> tuple[str, str]:
        """Singular and plural of what the request lists."""
        return self.listed or (self.names.one, self.names.value)

    @property
    def changes_span(self) -> bool:
        """Whether features leave, so that the projection has work to do."""
        return self.removes in (Part.NODES, Part.FEATURES)

    @property
    def deletes(self) -> Part:
        """The part that a deletion takes away. Raises ValueError for a kind by which something joins."""
        if self.removes is None:
            raise ValueError(f"{self.label} delete nothing")
        return self.removes

    @property
    def joins(self) -> bool:
        """Whether something joins the graph."""
        return self.removes is None

    def noun(self, count: int) -> str:
        """Return the noun for what `count` targets lose, such as "nodes' features"."""
        owner = self.nouns[count != 1]
        return f"{owner}'{'s' if count == 1 else ''} {self.only[count != 1]}" if self.only else owner

    def in_plain_words(self, count: int) -> str:
        """Return the targets in plain words, such as "2 records"."""
        return self.plain[0] if count == 1 else self.plain[1].format(count=number(count))

    def asked(self, count: int) -> str:
        """Return the request's object, such as "2 nodes" or "the features of 1 node"."""
        counted = plural(count, *self.nouns)
        return f"the {self.only[count != 1]} of {counted}" if self.only else counted

    @property
    def scope(self) -> Scope:
        """Scope of the API keys that may send and cancel such requests."""
        return Scope.GRAPH_WRITE if self.joins else Scope.DELETIONS_WRITE


def removing(part: Part) -> tuple[RequestKind, ...]:
    """Return the kinds that remove this part."""
    return tuple(kind for kind, rules in RULES.items() if rules.removes is part)


def parts_of(names: Names) -> tuple[Part, ...]:
    """Return the parts of a node, or of an edge, that can be removed separately."""
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
        "feature, so the projection had nothing to do and there are no norms to report.",
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
        meaning="Features of nodes; the nodes, their labels and their edges stay.",
        explanation="The predictions and the coefficients no longer contain the deleted features. The nodes themselves "
        "stay, with their edges and labels.",
        applied="The features left the coefficients and every prediction; the nodes stay.",
        erased="Features",
        plain=(
            "the stored details of one record (not its label and links)",
            "the stored details of {count} records (not their labels and links)",
        ),
        only=("features", "features"),
    ),
    RequestKind.LABEL: Rules(
        names=Names.NODES,
        removes=Part.LABELS,
        tombstone_code=3,
        purpose="Withdraw the labels of nodes from training; the nodes, their features and their edges stay.",
        example="Withdraw the labels of two nodes",
        label="Labels",
        meaning="Labels leave the training; the nodes stay, with their features and edges.",
        explanation="The withdrawn labels have left the training set. The nodes themselves stay, with their features "
        "and edges. A label carries no feature, so this asked nothing of the projection.",
        applied="The labels left the training set; the nodes stay.",
        erased="Labels",
        plain=("the label of one record", "the labels of {count} records"),
        only=("label", "labels"),
    ),
    RequestKind.ADDITION: Rules(
        names=Names.NODES,
        removes=None,
        tombstone_code=None,
        purpose="Add nodes and edges: the nodes are predicted, and those with a label are trained on.",
        example="Add a node with an edge",
        label="Additions",
        meaning="Nodes and edges join the graph.",
        explanation="The added nodes and edges are in the graph and in every prediction.",
        applied="The nodes and edges joined the graph and every prediction.",
        erased="The request's own copy of features and labels",
        plain=("one new record", "{count} new records and links"),
        listed=("new node or edge", "new nodes and edges"),
    ),
    RequestKind.CORRECTION: Rules(
        names=Names.NODES,
        removes=None,
        tombstone_code=None,
        purpose="Replace features or labels of nodes; the old values are erased.",
        example="Correct the features of a node",
        label="Corrections",
        meaning="Features or labels are replaced, and the old values erased.",
        explanation="The graph, the predictions and the coefficients hold the corrected values and no old ones.",
        applied="The corrected values replaced the old ones in the graph and in every prediction.",
        erased="The old values",
        plain=("corrected details of one record", "corrected details of {count} records"),
        listed=("corrected node", "corrected nodes"),
    ),
}
#: The kinds by which something is deleted.
DELETIONS = tuple(kind for kind, rules in RULES.items() if not rules.joins)
