"""The requests of a list as a file, under the same filters."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from service.audit_records.file import MEDIA_TYPES, written
from service.audit_records.search import export
from service.dashboard.pages import Page
from service.dashboard.sessions import PATH, SignedIn
from service.dashboard.words.filters import ExportQuery, list_filters
from service.errors import InvalidRequest
from service.http.replies import file_reply
from service.services import services_of

router = APIRouter(prefix=f"{PATH}/export", route_class=Page, include_in_schema=False)


@router.get("")
async def export_list(request: Request, visitor: SignedIn, query: Annotated[ExportQuery, Query()]) -> Response:
    """A line for every request that the filters in the URL keep, newest first, with every figure; streamed."""
    filters, form = list_filters(query), query.form
    if filters.faults:
        # A list shows the faults beside its rows; a file has no place for them.
        raise InvalidRequest(f"Invalid filters: {'; '.join(filters.faults)}.", "Correct them in the list.")
    pages = export(services_of(request).engine, filters.audit)
    return await file_reply(written(pages, form), f"lethe-requests.{form.value}", MEDIA_TYPES[form])
