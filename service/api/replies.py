"""Answers serialised once: a validated model, or a frozen record, straight to bytes; long ones in a thread."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel
from starlette.responses import Response

_Made = TypeVar("_Made")

#: Named nodes from which on the event loop is better served by a thread: below, handing over costs more than the work.
_MANY = 200


def reply(model: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`model` as JSON. The route declares the same model as its `response_model`, so /docs knows the schema."""
    content = model.__pydantic_serializer__.to_json(model, by_alias=True)
    return Response(content, status_code=status, headers=headers, media_type="application/json")


def reply_record(record: Any) -> Response:
    """A frozen dataclass, or a dict of them, as JSON: the quick way out of the prediction routes."""
    return Response(orjson.dumps(record), media_type="application/json")


async def aside(count: int, work: Callable[[], _Made]) -> _Made:
    """What `work` makes of `count` named nodes; many are worked on in a thread, so that nobody else has to wait."""
    return work() if count < _MANY else await asyncio.to_thread(work)
