"""Predictions as a caller may see them: rounded, and counted against its limit; for every route that predicts."""

from collections.abc import Sequence
from typing import Annotated

from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.predictions.reader import Prediction, Scores, offload
from service.web.api.auth import requires
from service.web.services import Services

Caller = Annotated[ApiKey, requires(Scope.PREDICTIONS_READ)]


def decimals_for(services: Services, caller: ApiKey) -> int | None:
    """Return the number of decimals that the caller may see; None for all."""
    return None if Scope.PREDICTIONS_EXACT in caller.scopes else services.settings.prediction_decimals


async def predictions_for(
    services: Services, caller: ApiKey, nodes: Sequence[str]
) -> tuple[int, list[Prediction | Scores], list[str]]:
    """Return a version, its predictions as the caller may see them, and the ids that are not live nodes.

    Raises Unavailable, and NodeLimitReached.
    """
    reader, count = services.reader, len(nodes)
    decimals = decimals_for(services, caller)

    def predicted() -> tuple[int, list[Prediction | Scores], list[str]]:
        return reader.predict_many(nodes, decimals)

    if not services.allowance.is_limited:
        return await offload(count, predicted)
    while True:
        _, facts, rows = await offload(count, lambda: reader.locate(nodes))
        counted = facts.served.version
        await services.allowance.take(caller.id, counted, [row for row in rows if row is not None])
        # Predict after that wait, so that no response comes from a version replaced meanwhile.
        found = await offload(count, predicted)
        if found[0] == counted:
            return found
