"""Finding requests by reference or by node: asked for in a form's body, so that no URL ever holds either."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.api.fields import is_reference
from service.api.services import Services, services_of
from service.dashboard.access import PATH, SignedIn, form_of
from service.dashboard.pages import Page, page
from service.dashboard.requests import PAGE_ROWS, clocks
from service.db.audit_queries import search
from service.db.clock import now
from service.db.transactions import transaction
from service.domain.audit import AuditFilters
from service.domain.states import RequestKind

router = APIRouter(prefix=f"{PATH}/find", route_class=Page, include_in_schema=False)

#: What requests delete of a node.
_KINDS = (RequestKind.NODE, RequestKind.FEATURES)


@router.get("")
async def find_page(request: Request, visitor: SignedIn) -> Response:
    """The form."""
    return page(request, "find.html", visitor, rows=None, by="reference", more=False, is_kept=False)


@router.post("")
async def find(request: Request, visitor: SignedIn) -> Response:
    """The requests with a reference, or those that deleted a node or its features.

    What is still queued is not found by a node: until it is applied, its ids are kept encrypted.
    """
    services = services_of(request)
    fields = await form_of(request, visitor.session.form_token)
    by, text = fields.get("by", "reference"), fields.get("text", "").strip()
    filters = await _by_node(services, text) if by == "node" else _by_reference(text)
    async with transaction(services.engine) as connection:
        found = await search(connection, filters, None, PAGE_ROWS)
        at = await now(connection)
    rows = clocks(found.entries, at, services.settings.deadline)
    # Deleted by a request that the database, restored from an older backup, does not know.
    is_kept = by == "node" and any(services.tombstones.only_kept(kind, [text]) for kind in _KINDS)
    return page(request, "find.html", visitor, rows=rows, by=by, more=found.next_cursor is not None, is_kept=is_kept)


def _by_reference(text: str) -> AuditFilters:
    """The requests with this reference: none, if it is no reference that a request can have."""
    return AuditFilters(reference=text) if is_reference(text) else AuditFilters(ids=frozenset())


async def _by_node(services: Services, node: str) -> AuditFilters:
    found = [await services.tombstones.find(kind, [node]) for kind in _KINDS] if node else []
    return AuditFilters(ids=frozenset(request_id for by_node in found for request_id in by_node.values()))
