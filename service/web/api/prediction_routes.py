"""Predictions by external node id, from the reader's memory."""

import re
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from service.domain.fields import Known, NodeIds
from service.domain.scopes import Scope
from service.errors import BodyTooLarge, NodeDeleted, NotFound
from service.predictions.reader import Prediction, Scores, offload
from service.web.api.auth import BearerKey, KeyedRoute
from service.web.api.predicting import Caller, predictions_for
from service.web.routes import StrictRoute, problems, reply_record
from service.web.services import services_of


class PredictRequest(Known):
    """The nodes to predict."""

    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"nodes": ["12", "57"]}]})

    nodes: NodeIds = Field(description="Ids of nodes; repeated ids get repeated answers.")


class NodePrediction(BaseModel):
    """The class probabilities of one node in a response for several."""

    node: str
    label: str = Field(description="The class with the highest exact probability.")
    probabilities: dict[str, float] = Field(
        description="Probability by class. Exact with the scope predictions:exact; otherwise each is rounded to "
        "LETHE_PREDICTION_DECIMALS, so they may not sum to 1."
    )


class NodeScores(BaseModel):
    """The predicted targets of one node in a regression response for several."""

    node: str
    scores: dict[str, float] = Field(description="Predicted value by target, rounded as probabilities are.")


_PREDICTION: dict[str, Any] = {"node": "12", "label": "3", "probabilities": {"0": 0.01, "1": 0.02, "3": 0.97}}
_SCORES: dict[str, Any] = {"node": "12", "scores": {"income": 3.21}, "model_version": 7}


class ScoresAnswer(NodeScores):
    """The predicted targets of one node, by one version of a regression model."""

    model_config = ConfigDict(protected_namespaces=(), json_schema_extra={"examples": [_SCORES]})

    model_version: int


class PredictionAnswer(NodePrediction):
    """The class probabilities of one node, by one model version."""

    model_config = ConfigDict(
        protected_namespaces=(), json_schema_extra={"examples": [{**_PREDICTION, "model_version": 7}]}
    )

    model_version: int = Field(description="Increases with each update of the model.")


class PredictionsAnswer(BaseModel):
    """Predictions of several nodes, all by the same model version."""

    model_config = ConfigDict(
        protected_namespaces=(),
        json_schema_extra={
            "examples": [{"model_version": 7, "predictions": [_PREDICTION], "unknown": ["no-such-node"], "deleted": []}]
        },
    )

    model_version: int
    predictions: list[NodePrediction | NodeScores] = Field(description="In the order of the request.")
    unknown: list[str] = Field(description="Unknown ids; without deletions:read, deleted ids too.")
    deleted: list[str] = Field(description="Deleted ids; always empty without deletions:read.")


_authenticate = BearerKey((Scope.PREDICTIONS_READ,), all)


class PredictRoute(StrictRoute):
    """The busiest route: calls its endpoint directly, without the framework's dependency injection.

    /docs shows the endpoint's declarations; the handler here does the same by hand.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Allow line breaks in node ids, as in bodies."""
        super().__init__(*args, **kwargs)
        self.path_regex = re.compile(self.path_regex.pattern, re.DOTALL)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler that the framework calls."""

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

    Exact for keys that also have predictions:exact, rounded for others. A deleted node is 410 for keys that also have
    deletions:read, and 404 for others.
    """
    services = services_of(request)
    _, predictions, _ = await predictions_for(services, caller, [node])
    if predictions:
        return reply_record(predictions[0])
    if Scope.DELETIONS_READ in caller.scopes and await services.deletions.tombstones.deleted_nodes([node]):
        raise NodeDeleted(
            "The node was deleted on request.",
            "Do not request it again: its data is gone. If the person returns, add the node with `rejoin`.",
        )
    raise NotFound("The model has no node with this id.", "Check the id; `GET /model` names the served model.")


@router.post(
    "/predict",
    response_model=PredictionsAnswer,
    responses=problems(401, 403, 413, 503),
    summary="Predict several nodes",
)
async def predict_many(request: Request, body: PredictRequest, caller: Caller) -> Response:
    """Predictions of several nodes by one model version, each as by `GET /predict/{node}`.

    Ids that are not live nodes are listed separately. Keys that also have deletions:read get deleted ones under
    `deleted`; others get all of them under `unknown`.
    """
    services = services_of(request)
    limit = services.settings.max_nodes_per_request
    if len(body.nodes) > limit:
        raise BodyTooLarge(
            f"{len(body.nodes)} nodes exceed the limit of {limit} per request.",
            "Split them into several requests.",
            max_nodes=limit,
        )
    version, predictions, missing = await predictions_for(services, caller, body.nodes)
    deleted: set[str] = set()
    if missing and Scope.DELETIONS_READ in caller.scopes:
        deleted = {*await services.deletions.tombstones.deleted_nodes(missing)}
    return await offload(len(body.nodes), lambda: _listed(version, predictions, missing, deleted))


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
