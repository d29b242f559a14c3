"""The list of requests, newest first; its filters are its URL, so that a view can be kept and sent."""

import hmac
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from service.audit_records.queries import AuditEntry
from service.audit_records.search import MOST_COUNTED, count, search
from service.dashboard.pages import Page, Region, current, page, polls, region, url_with
from service.dashboard.sessions import PATH, SignedIn
from service.dashboard.words.clock import Clock, clock_of
from service.dashboard.words.filters import (
    CHOICES,
    DAYS,
    LIMITS,
    ORDER,
    QUESTIONS,
    ListFilters,
    ListQuery,
    in_words,
    list_filters,
    state_of,
)
from service.dashboard.words.wording import words_of
from service.db.clock import now
from service.db.transactions import transaction
from service.services import Services, services_of
from service.vault.cursors import decode, encode

router = APIRouter(prefix=f"{PATH}/requests", route_class=Page, include_in_schema=False)

#: Requests on one page.
PAGE_ROWS = 50
_REGION = "results"
#: The form of filters: what it asks for becomes the page's address, without its empty fields.
_FORM = "filters"
#: Seconds between two looks at the first page; later pages stand still.
_EVERY_S = 3.0


@router.get("")
async def list_page(request: Request, visitor: SignedIn, query: Annotated[ListQuery, Query()]) -> Response:
    """A page of requests under the filters in the URL, or the table alone for the page that keeps itself current."""
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
    """Each entry with its clock while it is open."""
    return [(entry, clock_of(entry.request, at) if entry.request.ended_at is None else None) for entry in entries]


async def _region(services: Services, filters: ListFilters, cursor: str) -> Region:
    key = _cursor_key(services, filters)
    after = decode(cursor, key) if cursor else None
    async with transaction(services.engine) as connection:
        found = await search(connection, filters.audit, after, PAGE_ROWS, filters.order)
        counted = await count(connection, filters.audit)
        at = await now(connection)
    path = f"{PATH}/requests"
    following = encode(found.next_cursor, key) if found.next_cursor else None
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
    """Each filter in words, and the address of the list without it."""
    found = []
    for name, text in filters.given.items():
        state = state_of(name, text)
        label = in_words(name, text if state is None else words_of(state).label)
        rest = {other: value for other, value in filters.given.items() if other != name}
        found.append((label, url_with(f"{PATH}/requests", rest)))
    return found


def _cursor_key(services: Services, filters: ListFilters) -> bytes:
    """A key that only this list has: a cursor of another does not decode."""
    query = url_with("dashboard", dict(sorted(filters.given.items())))
    return hmac.digest(services.keyring.cursor_key, query.encode(), "sha256")
