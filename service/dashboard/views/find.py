"""Finding requests by reference or by node: asked for in a form's body, so that no URL ever holds either."""

from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.audit_records.queries import AuditFilters
from service.audit_records.search import search
from service.dashboard.pages import Page, page
from service.dashboard.sessions import PATH, SignedIn, form_of
from service.dashboard.views.requests import PAGE_ROWS, clocks
from service.db.clock import now
from service.db.transactions import transaction
from service.domain.kinds import Names, parts_of
from service.http.fields import is_reference
from service.services import Services, services_of

router = APIRouter(prefix=f"{PATH}/find", route_class=Page, include_in_schema=False)


@router.get("")
async def find_page(request: Request, visitor: SignedIn) -> Response:
    """The form."""
    return page(request, "find.html", visitor, rows=None, by="reference", text="", more=False, lost=False)


@router.post("")
async def find(request: Request, visitor: SignedIn) -> Response:
    """The requests with such a text in their reference, or those that deleted a node or its features.

    What is still queued is not found by a node: until it is applied, its ids are kept encrypted.
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
    """The requests with this in their reference: none, if no reference can have it."""
    return AuditFilters(part_of_reference=text) if is_reference(text) else AuditFilters(ids=frozenset())


async def _deleted_by(services: Services, node: str) -> frozenset[UUID | None]:
    """The requests that deleted a node or its features; None for one that the database, restored, does not have."""
    found = [await services.deletions.tombstones.find(part, [node]) for part in parts_of(Names.NODES)] if node else []
    return frozenset(request_id for by_node in found for request_id in by_node.values())
