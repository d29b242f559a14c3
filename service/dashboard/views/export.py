"""The requests of a list as a file, under the same filters."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from service.audit_records.file import MEDIA_TYPES, ExportFormat, written
from service.audit_records.search import export
from service.dashboard.pages import Page
from service.dashboard.sessions import PATH, SignedIn
from service.dashboard.words.filters import list_filters
from service.http.replies import file_reply
from service.services import services_of

router = APIRouter(prefix=f"{PATH}/export", route_class=Page, include_in_schema=False)


@router.get("")
async def export_list(
    request: Request, visitor: SignedIn, form: Annotated[ExportFormat, Query(alias="format")] = ExportFormat.CSV
) -> Response:
    """A line for every request that the filters in the URL keep, newest first, with every figure; streamed."""
    pages = export(services_of(request).engine, list_filters(request.query_params).audit)
    return await file_reply(written(pages, form), f"lethe-requests.{form.value}", MEDIA_TYPES[form])
