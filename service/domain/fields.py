"""Field types shared by several request bodies; all are strict."""

import re
from datetime import UTC, date, datetime
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from projector.graph.node_ids import MAX_CHARACTERS
from service.text import UNSHOWN, fault_of

#: Range of accepted times. Within it, no time zone can push a time out of the calendar.
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


def _is_moment(value: object) -> object:
    if isinstance(value, str) and not re.match(r"\d{4}-\d\d-\d\d[Tt ]", value):
        raise ValueError("must be a time in RFC 3339 format, such as 2026-11-20T00:00:00Z")
    if isinstance(value, str) and re.search(r"\d \d\d:?\d\d$", value[11:]):
        raise ValueError("must have its plus sign sent as %2B in a URL, as in …T00:00:00%2B01:00")
    if not isinstance(value, str | datetime):
        raise ValueError("must be a time in a string")
    return value


def _is_in_range(value: datetime) -> datetime:
    if not _EARLIEST <= value <= _LATEST:
        raise ValueError(f"must be between {_EARLIEST:%Y} and {_LATEST:%Y}")
    return value


def _is_day(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        raise ValueError("must be a day such as 2026-11-20")
    return value


#: A time with its offset from UTC.
Moment = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_is_moment), AfterValidator(_is_in_range)]

#: A day in UTC.
Day = Annotated[date, BeforeValidator(_is_day)]

#: A norm, bound or residual.
Magnitude = Annotated[float, Field(ge=0, allow_inf_nan=False)]

#: An external node id: any non-empty text of at most MAX_CHARACTERS characters.
NodeId = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=MAX_CHARACTERS)]

#: External node ids. Validation stops at the first fault: more would cost time and add nothing.
NodeIds = Annotated[list[NodeId], Field(min_length=1, fail_fast=True)]

#: The two ends of an edge.
NodePair = Annotated[list[NodeId], Field(min_length=2, max_length=2, fail_fast=True)]


def _is_shown(text: str) -> str:
    if fault := fault_of(text):
        raise ValueError(fault)
    return text


#: Refuse text with invisible characters, and document the check in /docs.
IS_SHOWN, SHOWN = AfterValidator(_is_shown), Field(json_schema_extra={"pattern": f"^[^{UNSHOWN}]*$"})

#: The caller's own reference: 1 to 200 characters, none invisible.
Reference = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=200), IS_SHOWN, SHOWN]

_REFERENCE = TypeAdapter(Reference)


def is_reference(text: str) -> bool:
    """Return whether `text` is a valid reference."""
    try:
        _REFERENCE.validate_python(text)
    except ValidationError:
        return False
    return True


class Window(BaseModel):
    """A half-open interval from `since` to `until` (excluded), declared by subclasses. A missing end sets no limit."""

    @model_validator(mode="after")
    def _begins_before_it_ends(self) -> Self:
        since, until = getattr(self, "since", None), getattr(self, "until", None)
        if since is not None and until is not None and since >= until:
            raise PydanticCustomError("empty_window", "must have `since` before `until`")
        return self


#: Most characters of a member's name that an error quotes.
_LONGEST_NAME = 100


class Known(BaseModel):
    """Accepts only known members or parameters. An error for too many of them names the first unknown one."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _no_more_than_known(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > len(cls.model_fields):
            unknown = next(str(name) for name in given if name not in cls.model_fields)
            # JSON can name half of a surrogate pair, which is not valid text.
            shown = unknown[:_LONGEST_NAME].encode(errors="backslashreplace").decode()
            raise PydanticCustomError(
                "too_many_members",
                "must have at most the {most} members known here, not {given}: {unknown} is unknown",
                {"most": len(cls.model_fields), "given": len(given), "unknown": shown},
            )
        return given
