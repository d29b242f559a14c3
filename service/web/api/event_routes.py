"""The feed of events, and deliveries of webhooks."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from service.access.cursors import Cursors
from service.db.transactions import transaction
from service.domain.fields import Known
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.reports.listing import reads_audit, visible_to
from service.web.api.auth import KeyedRoute, requires, requires_any
from service.web.routes import problems, reply
from service.web.services import services_of
from service.webhooks.deliveries import DeliveryRepository, DeliveryState
from service.webhooks.feed import FeedRepository
from service.webhooks.schemas import DeliveryPage, FeedPage, delivery_answer, event_answer

router = APIRouter(tags=["events"], route_class=KeyedRoute)

Reader = Annotated[ApiKey, requires_any(Scope.DELETIONS_READ, Scope.AUDIT_READ)]
Auditor = Annotated[ApiKey, requires(Scope.AUDIT_READ)]


class FeedWindow(Known):
    """Start and size of a page of the feed."""

    after: UUID | None = Field(None, description="Id of the last event seen; default: from the first event.")
    limit: int = Field(100, ge=1, le=200, description="Maximum number of events.")


class DeliveryFilters(Known):
    """Filters for the list of deliveries."""

    state: DeliveryState | None = Field(None, description="Only deliveries in this state.")
    cursor: str | None = Field(None, min_length=1, max_length=256, description="`next_cursor` of the previous page.")
    limit: int = Field(50, ge=1, le=200, description="Maximum number of deliveries.")


@router.get(
    "/events",
    response_model=FeedPage,
    responses=problems(401, 403, 503),
    summary="Read the events of requests",
)
async def list_events(request: Request, window: Annotated[FeedWindow, Query()], caller: Reader) -> Response:
    """Events after the given one, oldest first: of all requests for a key with audit:read, otherwise of its own.

    A client that always continues after the last event seen misses none and sees none twice.
    """
    async with transaction(services_of(request).engine) as connection:
        events = await FeedRepository(connection).page(window.after, visible_to(caller), window.limit)
    shown = [event_answer(event, reads_audit=reads_audit(caller)) for event in events]
    return reply(FeedPage(events=shown))


@router.get(
    "/webhooks/deliveries",
    response_model=DeliveryPage,
    responses=problems(401, 403, 503),
    summary="List deliveries of webhooks",
)
async def list_deliveries(request: Request, filters: Annotated[DeliveryFilters, Query()], caller: Auditor) -> Response:
    """Deliveries with their results, including waiting ones: newest first. Finished ones are kept for 30 days."""
    services = services_of(request)
    cursors = Cursors(services.keyring.cursor_key, f"deliveries {filters.state}")
    async with transaction(services.engine) as connection:
        found, following = await DeliveryRepository(connection).page(
            filters.state, cursors.read(filters.cursor), filters.limit
        )
    shown = [delivery_answer(one) for one in found]
    return reply(DeliveryPage(deliveries=shown, next_cursor=cursors.write(following)))
