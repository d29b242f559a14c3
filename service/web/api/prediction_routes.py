"""Predictions by external node id, from the reader's memory, and a description of the served model."""

import re
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from projector.forgetting.status import RepairStatus
from service.domain.fields import Known, NodeIds
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.domain.states import Guarantee, noise_in_words
from service.errors import BodyTooLarge, NodeDeleted, NotFound
from service.predictions.reader import Prediction, Scores, offload
from service.reports.listing import reads_audit
from service.web.api.auth import BearerKey, KeyedRoute, requires
from service.web.routes import StrictRoute, problems, reply, reply_record
from service.web.services import Services, services_of


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


#: Null without audit:read: computed from exact weights, features or graph, they could test what was deleted.
AUDIT_ONLY = (
    *("edges", "rank", "condition_number", "span_residual", "distance_bound", "distance_bound_relative"),
    *("repair_progress", "weights_sha256", "accuracy", "regression"),
)
_AUDIT = "Null without audit:read."


class RepairProgressAnswer(BaseModel):
    """Progress of a running repair."""

    iterations: int = Field(description="Steps so far.")
    products: int = Field(description="Products with the Hessian so far.")
    distance_bound_relative: float | None = Field(description="Bound of the best weights found so far.")


class NoiseAnswer(BaseModel):
    """The noise with which this version is published."""

    epsilon: float
    delta: float
    planned: int = Field(description="Number of versions after a deletion that the promise covers together.")
    used: float = Field(description="How many of them are used, for the first deletion.")
    sigma: float = Field(description="Standard deviation of the noise in each weight.")
    meaning: str = Field(description="What the noise hides and what it does not.")


class ModelAnswer(BaseModel):
    """The committed version of the model that serves predictions; some members need audit:read."""

    model_config = ConfigDict(
        populate_by_name=True,
        json_schema_extra={
            "examples": [
                {
                    "name": "cora",
                    "version": 7,
                    "nodes": 2708,
                    "live_nodes": 2690,
                    "edges": 5201,
                    "features": 1433,
                    "classes": ["0", "1", "2", "3", "4", "5", "6"],
                    "hops": 2,
                    "combine": "last",
                    "propagation": "sym",
                    "loss": "softmax",
                    "lambda": 0.0001,
                    "rank": 1431,
                    "condition_number": 157.0,
                    "accuracy": {"train": 0.98, "val": 0.86, "test": 0.87},
                    "regression": None,
                    "span_residual": 3e-15,
                    "distance_bound": 2e-9,
                    "distance_bound_relative": 1e-10,
                    "repair": "converged",
                    "repair_progress": None,
                    "guarantee": "retrained",
                    "device": "cpu",
                    "weights_sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
                    "noise": None,
                }
            ]
        },
    )

    name: str
    version: int
    nodes: int = Field(description="Nodes that the model was trained on.")
    live_nodes: int = Field(description="Nodes that are not deleted.")
    edges: int | None = Field(description=f"Undirected edges between live nodes. {_AUDIT}")
    features: int
    classes: list[str]
    hops: int
    combine: str
    propagation: str
    loss: str
    regularization: float = Field(alias="lambda", description="Weight of the squared norm in the loss.")
    rank: int | None = Field(description=f"Dimension of the span of the live nodes' features. {_AUDIT}")
    condition_number: float | None = Field(
        description=f"Condition number of the features at import, over the kept directions. {_AUDIT}"
    )
    accuracy: dict[str, float | None] | None = Field(
        description="Shares of training, validation and test nodes predicted rightly at import; null for a regression. "
        f"{_AUDIT}"
    )
    regression: dict[str, float | None] | None = Field(
        description=f"R^2 and mean squared error of them at import; null for classes. {_AUDIT}"
    )
    span_residual: float | None = Field(
        description=f"Distance of the weights from that span, last measured from disk. {_AUDIT}"
    )
    distance_bound: float | None = Field(
        description="Maximum distance of the weights from those of retraining on the remaining graph; null if "
        f"unknown, and for weights published with noise. {_AUDIT}"
    )
    distance_bound_relative: float | None = Field(
        description=f"The same, relative to the size of the weights. {_AUDIT}"
    )
    repair: RepairStatus = Field(description="State of the committed version's repair.")
    repair_progress: RepairProgressAnswer | None = Field(description=f"While `repair` is pending. {_AUDIT}")
    guarantee: Guarantee
    device: str
    weights_sha256: str | None = Field(description=f"Salted if the weights are published with noise. {_AUDIT}")
    noise: NoiseAnswer | None = Field(description="Null if the weights are published without noise.")


model_router = APIRouter(tags=["model"], route_class=KeyedRoute)

Caller = Annotated[ApiKey, requires(Scope.PREDICTIONS_READ)]


@model_router.get("/model", response_model=ModelAnswer, responses=problems(401, 403, 503), summary="Describe the model")
async def describe_model(request: Request, caller: Caller) -> Response:
    """The committed version: dimensions, live nodes, repair and guarantee.

    Keys that also have audit:read get rank, edges, condition number, residual, bounds and the digest of W. With these,
    a caller who has the graph could test which node was deleted.
    """
    info = await services_of(request).model_info()
    progress, noise, shown = info.repair_progress, info.facts.served.noise, None
    if noise is not None:
        shown = NoiseAnswer(**vars(noise), meaning=noise_in_words(noise.epsilon, noise.delta, noise.planned, noise.mu))
    answer = ModelAnswer(
        **vars(info.facts.model),
        **vars(info.facts.served) | {"noise": shown},
        span_residual=info.span_residual if noise is None else None,
        repair=info.repair,
        repair_progress=None
        if progress is None
        else RepairProgressAnswer(
            iterations=progress.iterations,
            products=progress.products,
            distance_bound_relative=progress.bound_relative,
        ),
        guarantee=info.guarantee,
        weights_sha256=info.weights_sha256,
    )
    return reply(answer if reads_audit(caller) else answer.model_copy(update=dict.fromkeys(AUDIT_ONLY)))


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
    _, predictions, _ = await _predictions(services, caller, [node])
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
    version, predictions, missing = await _predictions(services, caller, body.nodes)
    deleted: set[str] = set()
    if missing and Scope.DELETIONS_READ in caller.scopes:
        deleted = {*await services.deletions.tombstones.deleted_nodes(missing)}
    return await offload(len(body.nodes), lambda: _listed(version, predictions, missing, deleted))


async def _predictions(
    services: Services, caller: ApiKey, nodes: Sequence[str]
) -> tuple[int, list[Prediction | Scores], list[str]]:
    """Return a version, its predictions as the caller may see them, and the ids that are not live nodes."""
    reader, count = services.reader, len(nodes)
    decimals = None if Scope.PREDICTIONS_EXACT in caller.scopes else services.settings.prediction_decimals

    def told() -> tuple[int, list[Prediction | Scores], list[str]]:
        return reader.predict_many(nodes, decimals)

    if not services.allowance.is_limited:
        return await offload(count, told)
    while True:
        counted, rows = await offload(count, lambda: reader.rows(nodes))
        await services.allowance.take(caller.id, counted, rows)
        # Predict after that wait, so that no response comes from a version replaced meanwhile.
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
