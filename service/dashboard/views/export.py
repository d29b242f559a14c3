"""The requests of a list as a file, under the same filters."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from service.audit_records.file import MEDIA_TYPES, ExportFormat, written
from service.audit_records.search import export
from service.dashboard.pages import Page
from service.dashboard.sessions import PATH, SignedIn
from service.dashboard.words.filters import ListQuery, list_filters
from service.errors import InvalidRequest
from service.http.replies import file_reply
from service.services import services_of

router = APIRouter(prefix=f"{PATH}/export", route_class=Page, include_in_schema=False)


class FileQuery(ListQuery):
    """The filters of a list, and the form of the file."""

    form: ExportFormat = Field(ExportFormat.CSV, alias="format")


@router.get("")
async def export_list(request: Request, visitor: SignedIn, query: Annotated[FileQuery, Query()]) -> Response:
    """A line for every request that the filters in the URL keep, newest first, with every figure; streamed.

    Raises InvalidRequest for a filter that means nothing: a file does not say what it was not filtered by.
    """
    filters, form = list_filters(query.model_dump()), query.form
    if filters.faults:
        raise InvalidRequest(f"Not understood: {'; '.join(filters.faults)}.", "Correct it in the list of requests.")
    pages = export(services_of(request).engine, filters.audit)
    return await file_reply(written(pages, form), f"lethe-requests.{form.value}", MEDIA_TYPES[form])
