"""Request bodies of the routes that add nodes and edges, and that correct nodes."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, StringConstraints, Tag, model_validator
from pydantic_core import PydanticCustomError

from projector.graph.columns import NodeFeatures, Value
from projector.graph.graph import LARGEST_WEIGHT, SMALLEST_WEIGHT
from projector.graph.node_ids import RULE, is_allowed
from service.domain.fields import Known, NodeId, NodePair
from service.domain.kinds import RequestKind, Target, ordered
from service.domain.records import NodeContent
from service.requests.schemas import UNIQUE, RequestBody


def _joins(value: object) -> object:
    if isinstance(value, str) and not is_allowed(value):
        raise ValueError(f"must have {RULE}")
    return value


def _layout(value: object) -> str:
    return "by_column" if isinstance(value, dict) else "dense"


def _type_of_label(value: object) -> str:
    if isinstance(value, str):
        return "class"
    return "targets" if isinstance(value, list) else "target"


def _form_of_edge(value: object) -> str:
    return "weighted" if isinstance(value, list | tuple) and len(value) == 3 else "pair"


def _type_of_value(value: object) -> str:
    kinds = {bool: "flag", str: "category", list: "list"}
    return next((kind for each, kind in kinds.items() if isinstance(value, each)), "number")


def _is_given(value: object) -> object:
    if value is None:
        raise ValueError("must not be null; POST /deletions with kind `label` withdraws a label")
    return value


_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
#: A column's name or, if the model's columns have none, its number, from 0.
_Column = Annotated[str, StringConstraints(strict=True, min_length=1)]
_Value = Annotated[
    Annotated[bool, Tag("flag")]
    | Annotated[_Number, Tag("number")]
    | Annotated[str, StringConstraints(strict=True), Tag("category")]
    | Annotated[list[_Number], Field(fail_fast=True), Tag("list")],
    Discriminator(_type_of_value),
]
#: Features of a node.
Features = Annotated[
    Annotated[list[_Number], Field(fail_fast=True), Tag("dense")] | Annotated[dict[_Column, _Value], Tag("by_column")],
    Discriminator(_layout),
]
_Label = Annotated[
    Annotated[str, StringConstraints(strict=True, min_length=1), Tag("class")]
    | Annotated[_Number, Tag("target")]
    | Annotated[list[_Number], Field(fail_fast=True), Tag("targets")],
    Discriminator(_type_of_label),
]
_Weight = Annotated[float, Field(strict=True, ge=SMALLEST_WEIGHT, le=LARGEST_WEIGHT)]
_Edge = Annotated[
    Annotated[NodePair, Tag("pair")] | Annotated[tuple[NodeId, NodeId, _Weight], Field(strict=False), Tag("weighted")],
    Discriminator(_form_of_edge),
]
#: Their description in /docs.
FEATURES = (
    "A number for each column, or values by column; columns that are left out are 0. In a model that was trained on "
    "tables, columns have names, and a value is a number, true or false, a category, or a list. In others they have "
    "numbers, from 0."
)
_LABEL = "The name of a class, or the target of a regression: a number, or a list of one for each."


def features_of(given: list[float] | dict[str, Any]) -> NodeFeatures:
    """Return features as given in a body."""
    if isinstance(given, list):
        return tuple(given)
    return {column: _plain(value) for column, value in given.items()}


def _plain(value: Any) -> Value:
    return tuple(value) if isinstance(value, list) else float(value) if isinstance(value, bool) else value


class _Node(Known):
    model_config = ConfigDict(strict=True)

    def _content(self, features: Any, label: Any, *, rejoin: bool = False) -> NodeContent:
        return NodeContent(
            features=None if features is None else features_of(features),
            label=label if label is None or isinstance(label, str) else _targets(label),
            rejoin=rejoin,
        )


def _targets(label: float | list[float]) -> tuple[float, ...]:
    return tuple(label) if isinstance(label, list) else (label,)


class AddedNode(_Node):
    """A new node."""

    id: Annotated[NodeId, BeforeValidator(_joins)]
    features: Features = Field(description=FEATURES)
    label: _Label | None = Field(None, description=f"{_LABEL} Nodes with a label are trained on.")
    rejoin: bool = Field(False, description="Whether the node may join although an earlier request deleted it.")

    @property
    def content(self) -> NodeContent:
        """What the node brings."""
        return self._content(self.features, self.label, rejoin=self.rejoin)


class CorrectedNode(_Node):
    """A node whose features, label or both are replaced."""

    id: NodeId
    features: Annotated[Features | None, BeforeValidator(_is_given)] = Field(None, description=FEATURES)
    label: Annotated[_Label | None, BeforeValidator(_is_given)] = Field(None, description=_LABEL)

    @property
    def content(self) -> NodeContent:
        """What replaces the node's own."""
        return self._content(self.features, self.label)

    @model_validator(mode="after")
    def _corrects(self) -> Self:
        if self.features is None and self.label is None:
            raise PydanticCustomError("empty_request", "must have `features`, `label` or both")
        return self


class AdditionBody(RequestBody):
    """Add nodes, edges or both."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "nodes": [{"id": "anna", "features": {"3": 1, "17": 0.5}, "label": "0"}],
                    "edges": [["anna", "12"]],
                    "reference": "sign-up 4711",
                }
            ]
        }
    )

    nodes: list[AddedNode] = Field([], description="New nodes, each once.")
    edges: list[_Edge] = Field(
        [],
        fail_fast=True,
        description="Pairs of ids, each pair once, in either order: nodes of the graph or of this request. The weight "
        "of an edge follows its ids; it is 1 by default, and always 1 in a graph without weights.",
        json_schema_extra=UNIQUE,
    )

    @property
    def asked(self) -> RequestKind:
        """An addition."""
        return RequestKind.ADDITION

    @property
    def named(self) -> list[Target]:
        """The nodes, then the edges with their ends in order."""
        return [*(node.id for node in self.nodes), *(ordered(edge[:2]) for edge in self.edges)]

    @property
    def content(self) -> dict[str, NodeContent]:
        """What each node brings, by id."""
        return {node.id: node.content for node in self.nodes}

    @property
    def weights(self) -> dict[tuple[str, str], float]:
        """The weights other than 1, by edge."""
        weighted = [edge for edge in self.edges if isinstance(edge, tuple)]
        return {ordered((first, second)): weight for first, second, weight in weighted if weight != 1}

    @model_validator(mode="after")
    def _adds(self) -> Self:
        if not self.nodes and not self.edges:
            raise PydanticCustomError("empty_request", "must name at least one node or edge")
        return self


class CorrectionBody(RequestBody):
    """Replace features or labels of nodes; the old values are erased."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"nodes": [{"id": "12", "features": {"3": 1}, "label": "2"}], "reference": "DSR-22"}]
        }
    )

    nodes: list[CorrectedNode] = Field(min_length=1, description="The nodes, each once.")

    @property
    def asked(self) -> RequestKind:
        """A correction."""
        return RequestKind.CORRECTION

    @property
    def named(self) -> list[Target]:
        """The nodes."""
        return [node.id for node in self.nodes]

    @property
    def content(self) -> dict[str, NodeContent]:
        """What replaces each node's own, by id."""
        return {node.id: node.content for node in self.nodes}
