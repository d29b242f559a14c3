"""Predictions of all live nodes, as a file or page by page."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Send
from starlette.types import Scope as Scope_

from service.domain.fields import Known
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.predictions.downloads import Copy, Downloads, Wanted
from service.predictions.encodings import FileFormat, encoded
from service.web.api.auth import KeyedRoute, requires
from service.web.api.predicting import decimals_for
from service.web.protocol import ABORT
from service.web.routes import problems
from service.web.services import Services, services_of

router = APIRouter(tags=["predictions"], route_class=KeyedRoute)

#: Most bytes in a transport's buffer beside what it held: the rest waits in the copy.
_PIECE = 64 * 1024
#: Seconds between two looks at the head.
_LOOK_S = 1.0


class Bulk(Known):
    """Format and extent of a download."""

    format: FileFormat = Field(FileFormat.NDJSON, description="Format of the file; an Arrow file is also Feather.")
    limit: int | None = Field(None, ge=1, le=2**53 - 1, description="Most nodes in the answer; default: all.")
    cursor: str | None = Field(
        None, max_length=40, description="`Lethe-Next-Cursor` of the answer before. 409 if the model has changed since."
    )


#: Description in /docs of the file.
_FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One line or row for each node, in the order of the model's nodes",
        "content": {
            form.media_type: {"schema": {"type": "string", "format": "binary"}}
            if form in (FileFormat.PARQUET, FileFormat.ARROW)
            else {"schema": {"type": "string"}}
            for form in FileFormat
        },
        "headers": {
            "Lethe-Model-Version": {"description": "The version of all predictions.", "schema": {"type": "integer"}},
            "Lethe-Next-Cursor": {
                "description": "The `cursor` of the nodes after these; absent after the last.",
                "schema": {"type": "string"},
            },
        },
    }
}


Caller = Annotated[ApiKey, requires(Scope.PREDICTIONS_ALL)]


@router.get(
    "/predictions",
    response_class=StreamingResponse,
    responses={**_FILE, **problems(401, 403, 409, 503)},
    summary="Predict all nodes",
)
async def get_predictions(request: Request, wanted: Annotated[Bulk, Query()], caller: Caller) -> Response:
    """Predictions of all live nodes by one model version, as a file; with `limit`, a page of them.

    Each is as by `GET /predict/{node}` and counts as one. If another version comes meanwhile, the download has
    another minute; then the connection is cut.
    """
    services = services_of(request)
    wanted.format.require()
    extent = Wanted(wanted.cursor, wanted.limit, decimals_for(services, caller))
    with ExitStack() as stack:
        stack.enter_context(services.downloads.place())
        copy = stack.enter_context(closing(await _copied(services, caller.id, extent)))
        return Download(copy, wanted.format, services.downloads, stack.pop_all())


async def _copied(services: Services, key_id: Any, wanted: Wanted) -> Copy:
    """Copy what the caller wants, and count it."""
    downloads = services.downloads
    if not services.allowance.is_limited:
        return await asyncio.to_thread(downloads.copy, wanted)
    while True:
        counted, rows = await asyncio.to_thread(downloads.rows, wanted)
        await services.allowance.take(key_id, counted, rows)
        copy = await asyncio.to_thread(downloads.copy, wanted)
        if copy.facts.served.version == counted:
            return copy
        copy.close()


class Download(StreamingResponse):
    """A file made from a copy while it is sent. Cut off some time after the copy's version is outdated."""

    def __init__(self, copy: Copy, form: FileFormat, downloads: Downloads, held: ExitStack) -> None:
        """`held` is closed after the answer."""
        version = copy.facts.served.version
        headers = {
            "Content-Disposition": f'attachment; filename="predictions-{version}.{form.value}"',
            "Lethe-Model-Version": str(version),
        }
        if copy.next_cursor is not None:
            headers["Lethe-Next-Cursor"] = copy.next_cursor
        super().__init__(_pieces(encoded(form, copy.facts, copy)), media_type=form.media_type, headers=headers)
        self._copy = copy
        self._downloads = downloads
        self._held = held

    async def __call__(self, scope: Scope_, receive: Receive, send: Send) -> None:
        """Send the file, or as much of it as the caller takes in time."""
        with self._held:
            try:
                async with asyncio.timeout(None) as deadline:
                    watching = asyncio.create_task(self._watch(deadline))
                    try:
                        await super().__call__(scope, receive, send)
                    finally:
                        watching.cancel()
            except TimeoutError:
                # Closing would first wait for the caller to read what is buffered.
                scope["extensions"][ABORT]()
                while (await receive())["type"] != "http.disconnect":
                    pass

    async def _watch(self, deadline: asyncio.Timeout) -> None:
        """Set the deadline while the version is not known to be current, which may be for a moment only."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._downloads.is_current(self._copy):
                deadline.reschedule(None)
            elif deadline.when() is None:
                deadline.reschedule(asyncio.get_running_loop().time() + self._downloads.grace_s)


async def _pieces(parts: Iterator[bytes]) -> AsyncIterator[memoryview]:
    """Yield small pieces of parts that are made in a thread."""
    async for part in iterate_in_threadpool(parts):
        whole = memoryview(part)
        for start in range(0, len(whole), _PIECE):
            yield whole[start : start + _PIECE]
