"""The page of the model: its version, what is left of the graph, and the effect of a period's deletions."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.db.clock import now
from service.db.transactions import transaction
from service.errors import Unavailable
from service.predictions.version_rows import VersionRepository
from service.reports.summary import summary
from service.web.dashboard.charts import CHARTS, MODEL, PERIODS, Period, charts_region, period_of
from service.web.dashboard.pages import Page, Region, current, page, polls, region, url_with
from service.web.dashboard.signing_in import PATH, SignedIn
from service.web.services import Services, services_of

router = APIRouter(prefix=f"{PATH}/model", route_class=Page, include_in_schema=False)

_REGION = "now"
_EVERY_S = 5.0
#: Most versions in the table, newest first.
_VERSIONS = 20


@router.get("")
async def model_page(request: Request, visitor: SignedIn, period: str = "") -> Response:
    """The model over the period in the URL, or only the self-refreshing region."""
    chosen = period_of(period)
    services = services_of(request)
    url = url_with(f"{PATH}/model", {"period": chosen.name})
    if polls(request, _REGION):
        return current(request, await _region(services, chosen, url))
    charts = await charts_region(services, chosen, MODEL, url, norms=True)
    if polls(request, CHARTS):
        return current(request, charts)
    shown = await _region(services, chosen, url)
    return page(request, "model.html", visitor, region=shown, charts=charts, period=chosen, periods=PERIODS)


async def _region(services: Services, period: Period, url: str) -> Region:
    async with transaction(services.engine) as connection:
        figures = await summary(connection, services.model, period.first_day(await now(connection)))
        versions = await VersionRepository(connection).latest(services.model, limit=_VERSIONS)
    shown = {"figures": figures, "period": period, "versions": versions, "at_import": _at_import(services)}
    return region(_REGION, "model_now.html", url=url, every_s=_EVERY_S, **shown)


def _at_import(services: Services) -> tuple[float | None, float | None] | None:
    """Return the scores of the validation and the test nodes at import; None while no version can be read."""
    try:
        model = services.reader.facts.model
    except Unavailable:
        return None
    if model.regression is not None:
        return model.regression.get("r_squared_val"), model.regression.get("r_squared_test")
    return (model.accuracy or {}).get("val"), (model.accuracy or {}).get("test")
