"""Answers serialised once: a validated model, or a frozen record, straight to bytes."""

from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import BaseModel
from starlette.responses import Response


def reply(model: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`model` as JSON. The route declares the same model as its `response_model`, so /docs knows the schema."""
    content = model.__pydantic_serializer__.to_json(model, by_alias=True)
    return Response(content, status_code=status, headers=headers, media_type="application/json")


def reply_record(record: Any) -> Response:
    """A frozen dataclass, or a dict of them, as JSON: the quick way out of the prediction routes."""
    return Response(orjson.dumps(record), media_type="application/json")
