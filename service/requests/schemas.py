"""Request bodies of the deletion routes, and the base of all request bodies."""

import re
from abc import abstractmethod
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    create_model,
)

from service.domain.fields import IS_SHOWN, SHOWN, Known, Moment, NodeIds, NodePair, Reference
from service.domain.kinds import DELETIONS, Names, RequestKind, Target, ordered
from service.domain.records import NodeContent
from service.log.commitments import SALT_BYTES

#: Describes a list in which nothing is named twice.
UNIQUE: dict[str, Any] = {"uniqueItems": True}


def _are_salts(value: object) -> object:
    """Check up to the first fault; reporting more is not worth the time."""
    if isinstance(value, dict) and not all(isinstance(one, str) and _SALT.fullmatch(one) for one in value.values()):
        raise ValueError(f"salts must be {SALT_BYTES} bytes in lower-case hex")
    return value


_SALT = re.compile(f"[0-9a-f]{{{2 * SALT_BYTES}}}")
#: A salt in hex.
Salt = Annotated[str, StringConstraints(strict=True, pattern=f"^{_SALT.pattern}$")]


class SaltsBody(Known):
    """Salts that the caller drew itself from a good source of randomness and has never used before."""

    nodes: Annotated[dict[str, Salt], BeforeValidator(_are_salts)] = Field(
        description=f"{SALT_BYTES} random bytes, in hex, for each node and end of an edge."
    )
    reference: Salt | None = Field(None, description="The same for the reference, exactly when there is one.")


class RequestBody(Known):
    """Members that every request may have."""

    model_config = ConfigDict(strict=True)

    reference: Reference | None = Field(
        None, description="Your reference, such as the number of a data subject request."
    )
    salts: SaltsBody | None = Field(
        None, description="Your own salts, so that a lost answer does not lose them; drawn by Lethe by default."
    )

    @property
    @abstractmethod
    def asked(self) -> RequestKind:
        """The kind of request."""

    @property
    @abstractmethod
    def named(self) -> list[Target]:
        """What the request names: nodes, then edges with their ends in order."""

    @property
    def content(self) -> dict[str, NodeContent]:
        """What nodes get, by id; empty for a deletion."""
        return {}

    @property
    def weights(self) -> dict[tuple[str, str], float]:
        """The weights of edges that join, by their ends in order, other than 1."""
        return {}


class _Deletion(RequestBody):
    kind: str

    @property
    def asked(self) -> RequestKind:
        """The kind of deletion."""
        return RequestKind(self.kind)


class NodesBody(_Deletion):
    """A request that names nodes."""

    example: ClassVar[dict[str, Any]] = {"nodes": ["12", "57"], "reference": "DSR-17"}
    nodes: NodeIds = Field(description="Ids of nodes, each once.", json_schema_extra=UNIQUE)

    @property
    def named(self) -> list[Target]:
        """The nodes."""
        return list(self.nodes)


class EdgesBody(_Deletion):
    """A request that names edges."""

    example: ClassVar[dict[str, Any]] = {"edges": [["1", "2"]], "reference": "DSR-18"}
    edges: list[NodePair] = Field(
        min_length=1,
        fail_fast=True,
        description="Pairs of ids, each pair once, in either order.",
        json_schema_extra=UNIQUE,
    )

    @property
    def named(self) -> list[Target]:
        """The edges with their ends in order."""
        return [ordered(edge) for edge in self.edges]


_BODIES: dict[Names, type[NodesBody | EdgesBody]] = {Names.NODES: NodesBody, Names.EDGES: EdgesBody}

#: Example bodies offered in /docs.
EXAMPLES: dict[str, Any] = {
    kind.value: {"summary": kind.rules.example, "value": {"kind": kind.value, **_BODIES[kind.rules.names].example}}
    for kind in DELETIONS
}


def _body_of(kind: RequestKind) -> type[_Deletion]:
    only: Any = Literal[kind.value]
    return create_model(
        f"{kind.value.title()}Deletion",
        __base__=_BODIES[kind.rules.names],
        __doc__=kind.rules.purpose,
        __cls_kwargs__={"json_schema_extra": {"examples": [EXAMPLES[kind.value]["value"]]}},
        kind=(only, ...),
    )


if TYPE_CHECKING:
    DeletionBody = NodesBody | EdgesBody
else:
    DeletionBody = Annotated[reduce(or_, map(_body_of, DELETIONS)), Field(discriminator="kind")]


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


#: The reason for a decision: 1 to 500 characters, none invisible, and not only spaces.
Reason = Annotated[str, StringConstraints(min_length=1, max_length=500), IS_SHOWN, SHOWN, AfterValidator(_not_blank)]


class HandledBody(Known):
    """Marks a failed request as handled by other means."""

    model_config = ConfigDict(
        strict=True, json_schema_extra={"examples": [{"reason": "Sent again under a new key, and completed."}]}
    )

    reason: Reason = Field(
        description="What was done about it. The log keeps this forever: do not name a person, node or reference."
    )


class HeldBody(Known):
    """Puts a queued request on hold."""

    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"reason": "Needed in a lawsuit."}]})

    reason: Reason = Field(
        description="Why it must wait. The log keeps this forever: do not name a person, node or reference."
    )


class ExtendedBody(Known):
    """Extends the deadline of a request."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [{"due_at": "2027-01-31T00:00:00Z", "reason": "It is one of 9,000 requests of one week."}]
        },
    )

    due_at: Moment = Field(description="The new deadline, later than the present one.")
    reason: Reason = Field(
        description="Why it takes longer. The log keeps this forever: do not name a person, node or reference."
    )
