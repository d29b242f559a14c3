"""The webhooks page: deliveries and their results."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from service.access.cursors import Cursors
from service.db.transactions import transaction
from service.web.dashboard.pages import Page, page, url_with
from service.web.dashboard.signing_in import PATH, SignedIn
from service.web.services import services_of
from service.webhooks.deliveries import DeliveryRepository, DeliveryState

router = APIRouter(prefix=f"{PATH}/webhooks", route_class=Page, include_in_schema=False)

#: Deliveries per page.
_ROWS = 50


@router.get("")
async def webhooks_page(
    request: Request, visitor: SignedIn, state: DeliveryState | None = None, cursor: Annotated[str, Query()] = ""
) -> Response:
    """Deliveries, newest first, optionally only those in one state."""
    services = services_of(request)
    cursors = Cursors(services.keyring.cursor_key, f"dashboard deliveries {state}")
    async with transaction(services.engine) as connection:
        repository = DeliveryRepository(connection)
        found, following = await repository.page(state, cursors.read(cursor), _ROWS)
        lacking = await repository.undelivered()
    path = f"{PATH}/webhooks"
    return page(
        request,
        "webhooks.html",
        visitor,
        deliveries=found,
        lacking=lacking,
        chosen=state,
        choices=[(one, url_with(path, {"state": one})) for one in DeliveryState],
        newest=url_with(path, {"state": state}) if cursor else None,
        older=url_with(path, {"state": state, "cursor": cursors.write(following)}) if following else None,
    )
