"""Predictions by external node id, from the reader's memory; no database on the way of a live node."""

import re
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from service.api.auth import BearerKey, KeyedRoute, requires
from service.api.prediction_schemas import PredictionAnswer, PredictionsAnswer, PredictRequest, ScoresAnswer
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.errors import BodyTooLarge, NodeDeleted, NotFound
from service.http.problem_responses import problems
from service.http.replies import reply_record
from service.http.routes import StrictRoute
from service.offload import offload
from service.publication.reader import Prediction, Scores
from service.services import Services, services_of

Caller = Annotated[ApiKey, requires(Scope.PREDICTIONS_READ)]

_authenticate = BearerKey((Scope.PREDICTIONS_READ,), all)


class PredictRoute(StrictRoute):
    """The route asked most: calls its endpoint directly, without the framework's solving of dependencies.

    What the endpoint declares is what /docs shows, and exactly what is done here by hand.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """A node's id may have line breaks in it, here as in a body."""
        super().__init__(*args, **kwargs)
        self.path_regex = re.compile(self.path_regex.pattern, re.DOTALL)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler that the framework calls."""

        async def handle(request: Request) -> Response:
            caller = await _authenticate(request)
            self.require_known(request)
            return await predict(request, request.path_params["node"], caller)

        return handle


router = APIRouter(tags=["predictions"], route_class=KeyedRoute)
single = APIRouter(tags=["predictions"], route_class=PredictRoute)


@single.get(
    "/predict/{node:path}",
    response_model=PredictionAnswer | ScoresAnswer,
    responses=problems(401, 403, 404, 410, 503),
    summary="Predict one node",
)
async def predict(
    request: Request,
    node: Annotated[str, Path(description="Id of the node.", examples=["12"])],
    caller: Caller,
) -> Response:
    """The class probabilities of a live node, or its scores, by the committed model on the remaining graph.

    In full to a key that also has predictions:exact, rounded to every other.
    A deleted node is 410 to a key that also has deletions:read, and 404 to every other.
    """
    services = services_of(request)
    _, predictions, _ = await _predictions(services, caller, [node])
    if predictions:
        return reply_record(predictions[0])
    if Scope.DELETIONS_READ in caller.scopes and await services.deletions.tombstones.deleted_nodes([node]):
        raise NodeDeleted(
            "The node was deleted on request.",
            "Do not request it again: its data is gone. A person who returns needs a new id.",
        )
    raise NotFound("The model has no node with this id.", "Check the id; `GET /model` names the served model.")


@router.post(
    "/predict",
    response_model=PredictionsAnswer,
    responses=problems(401, 403, 413, 503),
    summary="Predict several nodes",
)
async def predict_many(request: Request, body: PredictRequest, caller: Caller) -> Response:
    """Predictions of all nodes named, by one model version, each as by `GET /predict/{node}`.

    Ids that are no live nodes are listed apart: deleted ones under `deleted` for a key that also has
    deletions:read, under `unknown` for every other.
    """
    services = services_of(request)
    limit = services.settings.max_nodes_per_request
    if len(body.nodes) > limit:
        raise BodyTooLarge(
            f"{len(body.nodes)} nodes exceed the limit of {limit} per request.",
            "Split them into several requests.",
            max_nodes=limit,
        )
    version, predictions, missing = await _predictions(services, caller, body.nodes)
    deleted: set[str] = set()
    if missing and Scope.DELETIONS_READ in caller.scopes:
        deleted = {*await services.deletions.tombstones.deleted_nodes(missing)}
    return await offload(len(body.nodes), lambda: _listed(version, predictions, missing, deleted))


async def _predictions(
    services: Services, caller: ApiKey, nodes: Sequence[str]
) -> tuple[int, list[Prediction | Scores], list[str]]:
    """A version, its predictions as the caller may have them, and the ids that are not live nodes."""
    reader, count = services.reader, len(nodes)
    decimals = None if Scope.PREDICTIONS_EXACT in caller.scopes else services.settings.prediction_decimals

    def told() -> tuple[int, list[Prediction | Scores], list[str]]:
        return reader.predict_many(nodes, decimals)

    if not services.allowance.is_limited:
        return await offload(count, told)
    while True:
        counted, rows = await offload(count, lambda: reader.rows(nodes))
        await services.allowance.take(caller.id, counted, rows)
        # Read after that wait, so that no answer is of a version that has gone meanwhile.
        found = await offload(count, told)
        if found[0] == counted:
            return found


def _of_node(one: Prediction | Scores) -> dict[str, object]:
    if isinstance(one, Scores):
        return {"node": one.node, "scores": one.scores}
    return {"node": one.node, "label": one.label, "probabilities": one.probabilities}


def _listed(
    version: int, predictions: Sequence[Prediction | Scores], missing: Sequence[str], deleted: Collection[str]
) -> Response:
    return reply_record(
        {
            "model_version": version,
            "predictions": [_of_node(one) for one in predictions],
            "unknown": [node for node in missing if node not in deleted],
            "deleted": [node for node in missing if node in deleted],
        }
    )
