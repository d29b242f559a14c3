"""The list of requests, newest first: filtered by its URL, searched by reference or node, and as a file."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from service.access.cursors import Cursors
from service.db.clock import now
from service.db.transactions import transaction
from service.domain.fields import is_reference
from service.domain.kinds import Names, parts_of
from service.errors import InvalidRequest
from service.reports.queries import MEDIA_TYPES, AuditEntry, AuditFilters, written
from service.reports.search import MOST_COUNTED, count, export, search
from service.web.dashboard.pages import Page, Region, current, page, polls, region, url_with
from service.web.dashboard.signing_in import PATH, SignedIn, form_of
from service.web.dashboard.words import (
    CHOICES,
    DAYS,
    LIMITS,
    ORDER,
    QUESTIONS,
    Clock,
    ExportQuery,
    ListFilters,
    ListQuery,
    clock_of,
    in_words,
    list_filters,
    state_of,
    words_of,
)
from service.web.routes import file_reply
from service.web.services import Services, services_of

router = APIRouter(prefix=f"{PATH}/requests", route_class=Page, include_in_schema=False)

#: Requests per page.
PAGE_ROWS = 50
_REGION = "results"
#: Id of the filter form. Its query becomes the page's address, without empty fields.
_FORM = "filters"
#: Seconds between refreshes of the first page; later pages stay unchanged.
_EVERY_S = 3.0


@router.get("")
async def list_page(request: Request, visitor: SignedIn, query: Annotated[ListQuery, Query()]) -> Response:
    """A page of requests under the filters in the URL, or only the self-refreshing table."""
    filters = list_filters(query)
    shown = await _region(services_of(request), filters, query.cursor)
    if polls(request, _REGION):
        answer = current(request, shown)
        if request.headers.get("hx-trigger") == _FORM:
            answer.headers["HX-Push-Url"] = url_with(f"{PATH}/requests", filters.given)
        return answer
    return page(
        request,
        "requests.html",
        visitor,
        region=shown,
        given=filters.given,
        choices=(*CHOICES, *QUESTIONS),
        order=ORDER,
        days=DAYS,
        limits=LIMITS,
    )


def clocks(entries: list[AuditEntry], at: datetime) -> list[tuple[AuditEntry, Clock | None]]:
    """Return each entry with its clock if it is open."""
    return [(entry, clock_of(entry.request, at) if entry.request.ended_at is None else None) for entry in entries]


async def _region(services: Services, filters: ListFilters, cursor: str) -> Region:
    # Of this list alone: another order or filter begins its pages elsewhere.
    cursors = Cursors(services.keyring.cursor_key, url_with("dashboard", dict(sorted(filters.given.items()))))
    async with transaction(services.engine) as connection:
        found = await search(connection, filters.audit, cursors.read(cursor), PAGE_ROWS, filters.order)
        counted = await count(connection, filters.audit)
        at = await now(connection)
    path = f"{PATH}/requests"
    following = cursors.write(found.next_cursor)
    return region(
        _REGION,
        "requests_now.html",
        url=url_with(path, filters.given),
        every_s=None if cursor else _EVERY_S,
        rows=clocks(found.entries, at),
        filtered=bool(filters.given.keys() - {ORDER.name}),
        counted=min(counted, MOST_COUNTED),
        more=counted > MOST_COUNTED,
        drills_are_left_out=filters.audit.drills is False,
        chips=_chips(filters),
        faults=filters.faults,
        first=url_with(path, filters.given) if cursor else None,
        exports=[
            (form.upper(), url_with(f"{PATH}/export", {**filters.given, "format": form})) for form in ("csv", "ndjson")
        ],
        following=url_with(path, {**filters.given, "cursor": following}) if following else None,
    )


def _chips(filters: ListFilters) -> list[tuple[str, str]]:
    """Return each filter in words, with the list's address without it."""
    found = []
    for name, text in filters.given.items():
        state = state_of(name, text)
        label = in_words(name, text if state is None else words_of(state).label)
        rest = {other: value for other, value in filters.given.items() if other != name}
        found.append((label, url_with(f"{PATH}/requests", rest)))
    return found


find_router = APIRouter(prefix=f"{PATH}/find", route_class=Page, include_in_schema=False)


@find_router.get("")
async def find_page(request: Request, visitor: SignedIn) -> Response:
    """The search form."""
    return page(request, "find.html", visitor, rows=None, by="reference", text="", more=False, lost=False)


@find_router.post("")
async def find(request: Request, visitor: SignedIn) -> Response:
    """The requests whose reference contains a text, or those that deleted a node or its features.

    Queued requests are not found by node, because their ids stay encrypted until they are applied.
    """
    services = services_of(request)
    fields = await form_of(request, visitor.form_token, "by", "text")
    by, text = fields.get("by", "reference"), fields.get("text", "").strip()
    deleted_by = await _deleted_by(services, text) if by == "node" else frozenset()
    known = frozenset(request_id for request_id in deleted_by if request_id is not None)
    filters = AuditFilters(ids=known) if by == "node" else _by_reference(text)
    async with transaction(services.engine) as connection:
        found = await search(connection, filters, None, PAGE_ROWS)
        at = await now(connection)
    rows = clocks(found.entries, at)
    lost, more = None in deleted_by, found.next_cursor is not None
    return page(request, "find.html", visitor, rows=rows, by=by, text=text, more=more, lost=lost)


def _by_reference(text: str) -> AuditFilters:
    """Match requests whose reference contains `text`; none if no reference can."""
    return AuditFilters(part_of_reference=text) if is_reference(text) else AuditFilters(ids=frozenset())


async def _deleted_by(services: Services, node: str) -> frozenset[UUID | None]:
    """Return the requests that deleted a node or its features; None for one missing from a restored database."""
    found = [await services.deletions.tombstones.find(part, [node]) for part in parts_of(Names.NODES)] if node else []
    return frozenset(request_id for by_node in found for request_id in by_node.values())


export_router = APIRouter(prefix=f"{PATH}/export", route_class=Page, include_in_schema=False)


@export_router.get("")
async def export_list(request: Request, visitor: SignedIn, query: Annotated[ExportQuery, Query()]) -> Response:
    """One line for every request that matches the filters in the URL, newest first, with every figure; streamed."""
    filters, form = list_filters(query), query.form
    if filters.faults:
        # A list shows faults beside its rows; a file has no place for them.
        raise InvalidRequest(f"Invalid filters: {'; '.join(filters.faults)}.", "Correct them in the list.")
    pages = export(services_of(request).engine, filters.audit)
    return await file_reply(written(pages, form), f"lethe-requests.{form.value}", MEDIA_TYPES[form])
