"""Answers made once: a validated model or a frozen record as JSON, a page, a file in parts."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
from pydantic import BaseModel
from starlette.responses import HTMLResponse, Response, StreamingResponse


def reply(model: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`model` as JSON. The route declares the same model as its `response_model`, so /docs knows the schema."""
    content = model.__pydantic_serializer__.to_json(model, by_alias=True)
    return Response(content, status_code=status, headers=headers, media_type="application/json")


def reply_record(record: Any) -> Response:
    """A frozen dataclass, or a dict of them, as JSON: the quick way out of the prediction routes."""
    return Response(orjson.dumps(record), media_type="application/json")


def page_reply(html: str, policy: str, status: int = 200) -> Response:
    """A page, under its Content-Security-Policy."""
    return HTMLResponse(html, status, headers={"Content-Security-Policy": policy})


async def file_reply(parts: AsyncIterator[bytes], name: str, media_type: str) -> Response:
    """A file to be saved, sent as it is made; what the first part raises is raised before the answer begins."""
    first = await anext(parts)

    async def content() -> AsyncIterator[bytes]:
        yield first
        async for part in parts:
            yield part

    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(content(), media_type=media_type, headers=disposition)
