"""Predictions of nodes outside the graph, by the unlearner; nothing of a request is stored or logged."""

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.requests import Request
from starlette.responses import Response

from projector.graph.columns import NodeFeatures
from service.domain.fields import Known, NodeId
from service.domain.formats import plural
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.errors import MOST_FAULTS, BodyTooLarge, Unavailable, UnknownNodes
from service.predictions.facts import ModelFacts
from service.predictions.newcomers import Newcomer, Predicted, Question, Unfit, ask
from service.predictions.reader import labelled
from service.requests.deletable import NoEdges
from service.requests.graph_schemas import FEATURES, Features, features_of
from service.requests.joinable import DeletedNodes, UnfitFeatures, require_columns
from service.web.api.auth import KeyedRoute, requires
from service.web.api.predicting import decimals_for
from service.web.routes import problems, reply_record
from service.web.services import Services, services_of

#: Most nodes of a request: the unlearner computes them one by one, between its own steps.
MOST_NODES = 100
#: Longest wait for the unlearner (seconds), and the pause before it is asked again for another version.
_LONGEST_S = 8.0
_AGAIN_S = 0.02


class OutsideNode(Known):
    """A node outside the graph, for the time of this request."""

    model_config = ConfigDict(strict=True)

    features: Features = Field(description=FEATURES)
    neighbours: list[NodeId] = Field(
        [], fail_fast=True, description="Ids of nodes of the graph, each once.", json_schema_extra={"uniqueItems": True}
    )

    @field_validator("neighbours")
    @classmethod
    def _each_once(cls, given: list[str]) -> list[str]:
        if len({*given}) < len(given):
            raise ValueError("must name each neighbour once")
        return given


class OutsideNodes(Known):
    """The nodes to predict, each as if it alone joined the graph without a label."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"nodes": [{"features": {"3": 1, "17": 0.5}, "neighbours": ["12", "57"]}]}]}
    )

    nodes: list[OutsideNode] = Field(min_length=1, description=f"At most {MOST_NODES} nodes.")


class OutsidePrediction(BaseModel):
    """The class probabilities of one node."""

    label: str = Field(description="The class with the highest exact probability.")
    probabilities: dict[str, float] = Field(description="Probability by class, rounded as by `POST /predict`.")


class OutsideScores(BaseModel):
    """The predicted targets of one node, for a regression."""

    scores: dict[str, float] = Field(description="Predicted value by target, rounded as probabilities are.")


class OutsidePredictions(BaseModel):
    """Predictions of nodes outside the graph, all by the same model version."""

    model_config = ConfigDict(
        protected_namespaces=(),
        json_schema_extra={
            "examples": [
                {
                    "model_version": 7,
                    "predictions": [{"label": "3", "probabilities": {"0": 0.01, "1": 0.02, "3": 0.97}}],
                }
            ]
        },
    )

    model_version: int
    predictions: list[OutsidePrediction | OutsideScores] = Field(description="In the order of the request.")


router = APIRouter(tags=["predictions"], route_class=KeyedRoute)

Caller = Annotated[ApiKey, requires(Scope.PREDICTIONS_NEW)]


@router.post(
    "/predict-new",
    response_model=OutsidePredictions,
    responses=problems(401, 403, 404, 409, 413, 503),
    summary="Predict nodes outside the graph",
)
async def predict_new(request: Request, body: OutsideNodes, caller: Caller) -> Response:
    """Predictions of nodes that are not in the graph, from their features and neighbours. Nothing is stored or logged.

    Each prediction is the one that the node would get if it alone had joined without a label. Exact for keys that also
    have predictions:exact, rounded for others. Each node counts towards LETHE_MAX_PREDICTED_NODES, each time.

    A neighbour that is not in the graph is refused by name. Keys that also have deletions:read get deleted ones under
    `deleted`; others get all of them under `unknown`.
    """
    services = services_of(request)
    most = min(MOST_NODES, services.settings.max_nodes_per_request)
    if len(body.nodes) > most:
        raise BodyTooLarge(
            f"{len(body.nodes)} nodes exceed the limit of {most} per request.",
            "Split them into several requests.",
            max_nodes=most,
        )
    rows = [features_of(node.features) for node in body.nodes]
    neighbours = [node.neighbours for node in body.nodes]
    version, model, outputs = await _predicted(services, caller, rows, neighbours)
    decimals = decimals_for(services, caller)
    predictions = [_shown(model, output, decimals) for output in outputs]
    return reply_record({"model_version": version, "predictions": predictions})


def _shown(model: ModelFacts, output: Sequence[float], decimals: int | None) -> dict[str, Any]:
    label, values = labelled(model, np.array(output), decimals)
    return {"label": label, "probabilities": values} if model.regression is None else {"scores": values}


async def _predicted(
    services: Services, caller: ApiKey, rows: Sequence[NodeFeatures], neighbours: Sequence[Sequence[str]]
) -> tuple[int, ModelFacts, Sequence[Sequence[float]]]:
    """Return the exact outputs, (m, C), with the version that made them and its model.

    The version was the head after the request began: it is looked up before and after.
    """
    reader, until = services.reader, time.monotonic() + _LONGEST_S
    charged: int | None = None
    named = list(dict.fromkeys(node for each in neighbours for node in each))
    while True:
        head, facts, found = reader.locate(named)
        remedy = f"`unfit` lists the places of the first {MOST_FAULTS} nodes, from 0."
        require_columns(dict(enumerate(rows)), facts.model, remedy)
        if named and not facts.model.hops:
            raise NoEdges(facts.model.name)
        places = dict(zip(named, found, strict=True))
        if missing := [node for node, row in places.items() if row is None]:
            await _refuse(services, caller, missing)
        if services.allowance.is_limited and charged != head.version:
            charged = head.version
            await services.allowance.take(caller.id, head.version, (), outside=len(rows))
        newcomers = [
            Newcomer(features, tuple(row for node in each if (row := places[node]) is not None))
            for features, each in zip(rows, neighbours, strict=True)
        ]
        left = max(0.0, until - time.monotonic())
        reply = await ask(services.settings.home, Question(head.fencing, head.version, tuple(newcomers), left))
        # As for every prediction: what was computed counts if the head is still the same.
        is_current = reader.locate(())[0] == head
        if is_current and isinstance(reply, Unfit):
            raise UnfitFeatures(
                reply.detail,
                "Give finite numbers of about the size that the model's features have.",
                unfit=[reply.place],
            )
        if is_current and isinstance(reply, Predicted):
            return head.version, facts.model, reply.outputs
        if reply is None or time.monotonic() >= until:
            raise Unavailable(
                "The unlearner, which predicts nodes outside the graph, is busy or not running.",
                "Try again in a moment. Nodes of the graph are predicted meanwhile.",
            )
        await asyncio.sleep(_AGAIN_S)


async def _refuse(services: Services, caller: ApiKey, missing: Sequence[str]) -> None:
    """Raise DeletedNodes or UnknownNodes for neighbours that are not in the graph."""
    deleted: set[str] = set()
    if Scope.DELETIONS_READ in caller.scopes:
        deleted = {*await services.deletions.tombstones.deleted_nodes(missing)}
    if unknown := [node for node in missing if node not in deleted]:
        raise UnknownNodes(
            f"{plural(len(unknown), 'neighbour is', 'neighbours are')} not in the model {services.model}.",
            "Leave out those in `unknown`.",
            unknown=unknown,
        )
    raise DeletedNodes(
        f"{plural(len(missing), 'neighbour was', 'neighbours were')} deleted on request.",
        "Leave out those in `deleted`.",
        deleted=list(missing),
    )
