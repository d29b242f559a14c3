"""What the deletion routes take."""

from typing import Annotated, Any, Literal

from fastapi.openapi.models import Example
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from service.api.fields import NodeId, Reference
from service.domain.states import RequestKind, RequestStatus

_UNIQUE: dict[str, Any] = {"uniqueItems": True}


def _node_example(kind: str) -> dict[str, Any]:
    return {"kind": kind, "nodes": ["12", "57"], "reference": "DSR-17"}


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    reference: Reference | None = Field(
        None, description="Your own reference, such as a data subject request's number."
    )


class NodeDeletion(_Body):
    """Forget nodes: out of the graph, the weights, every prediction and the disk."""

    model_config = ConfigDict(json_schema_extra={"examples": [_node_example("node")]})

    kind: Literal["node"]
    nodes: list[NodeId] = Field(min_length=1, description="External ids, each once.", json_schema_extra=_UNIQUE)


class FeaturesDeletion(_Body):
    """Forget the features of nodes; the nodes and their edges stay."""

    model_config = ConfigDict(json_schema_extra={"examples": [_node_example("features")]})

    kind: Literal["features"]
    nodes: list[NodeId] = Field(min_length=1, description="External ids, each once.", json_schema_extra=_UNIQUE)


class EdgeDeletion(_Body):
    """Forget edges; their nodes stay."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"kind": "edge", "edges": [["1", "2"]], "reference": "DSR-18"}]}
    )

    kind: Literal["edge"]
    edges: list[Annotated[list[NodeId], Field(min_length=2, max_length=2)]] = Field(
        min_length=1,
        description="Pairs of external ids, each pair once; their order does not matter.",
        json_schema_extra=_UNIQUE,
    )


#: The bodies that /docs offers to try.
EXAMPLES: dict[str, Example] = {
    "nodes": {"summary": "Forget two nodes", "value": _node_example("node")},
    "edges": {"summary": "Forget an edge", "value": {"kind": "edge", "edges": [["1", "2"]], "reference": "DSR-18"}},
    "features": {"summary": "Forget the features of two nodes", "value": _node_example("features")},
}

DeletionBody = Annotated[NodeDeletion | EdgeDeletion | FeaturesDeletion, Field(discriminator="kind")]


class SearchBody(BaseModel):
    """The nodes whose deletion is looked for."""

    model_config = ConfigDict(strict=True, extra="forbid", json_schema_extra={"examples": [{"nodes": ["12", "57"]}]})

    nodes: list[NodeId] = Field(min_length=1, description="External ids.")


def _empty_is_absent(value: object) -> object:
    return None if value == "" else value


class DeletionFilters(BaseModel):
    """Which requests are listed; a parameter that is left out, or empty, filters nothing."""

    model_config = ConfigDict(extra="forbid")

    status: Annotated[RequestStatus | None, BeforeValidator(_empty_is_absent)] = None
    kind: Annotated[RequestKind | None, BeforeValidator(_empty_is_absent)] = None
    since: Annotated[AwareDatetime | None, BeforeValidator(_empty_is_absent)] = Field(
        None, description="Received at or after this time (RFC 3339, with its offset from UTC)."
    )
    until: Annotated[AwareDatetime | None, BeforeValidator(_empty_is_absent)] = Field(
        None, description="Received before this time."
    )
    cursor: Annotated[str | None, BeforeValidator(_empty_is_absent)] = Field(
        None, max_length=256, description="`next_cursor` of the previous page, with the same filters."
    )
    limit: int = Field(50, ge=1, le=200, description="Most requests on a page.")
