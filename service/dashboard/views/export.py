"""The requests of a list as a file, under the same filters."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from service.audit_records.file import MEDIA_TYPES, ExportFormat, head, lines
from service.audit_records.search import export
from service.dashboard.pages import Page
from service.dashboard.sessions import PATH, SignedIn
from service.dashboard.words.filters import list_filters
from service.services import services_of

router = APIRouter(prefix=f"{PATH}/export", route_class=Page, include_in_schema=False)


@router.get("")
async def export_list(
    request: Request, visitor: SignedIn, form: Annotated[ExportFormat, Query(alias="format")] = ExportFormat.CSV
) -> Response:
    """A line for every request that the filters in the URL keep, newest first, with every figure; streamed."""
    pages = export(services_of(request).engine, list_filters(request.query_params).audit)
    # Before the answer begins, so that an outage is told as a page.
    first = await anext(pages)

    async def content() -> AsyncIterator[bytes]:
        yield head(form) + lines(first, form)
        async for entries in pages:
            yield lines(entries, form)

    name = f'attachment; filename="lethe-requests.{form.value}"'
    return StreamingResponse(content(), media_type=MEDIA_TYPES[form], headers={"Content-Disposition": name})
