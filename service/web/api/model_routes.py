"""The description of the served model."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from projector.forgetting.status import RepairStatus
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.domain.states import Guarantee, noise_in_words
from service.reports.listing import reads_audit
from service.web.api.auth import KeyedRoute, requires
from service.web.routes import problems, reply
from service.web.services import services_of

#: Null without audit:read: computed from exact weights, features or graph, they could test what was deleted.
AUDIT_ONLY = (
    *("edges", "rank", "condition_number", "span_residual", "distance_bound", "distance_bound_relative"),
    *("repair_progress", "weights_sha256", "accuracy", "regression"),
    *("training_nodes", "score_validation", "score_test"),
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
                    "frozen_parts": [],
                    "weighted": False,
                    "training_nodes": 1201,
                    "score_validation": 0.86,
                    "score_test": 0.87,
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
    frozen_parts: list[str] = Field(description="What deletions do not change: `retrained` weights keep these parts.")
    weighted: bool = Field(description="Whether edges have weights.")
    training_nodes: int | None = Field(description=f"Nodes that are trained on, without deleted ones. {_AUDIT}")
    score_validation: float | None = Field(
        description="Accuracy of this version on the validation nodes that are left, or R^2 of a regression; null "
        f"without such nodes. {_AUDIT}"
    )
    score_test: float | None = Field(description=f"The same on the test nodes that are left. {_AUDIT}")
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


router = APIRouter(tags=["model"], route_class=KeyedRoute)

Caller = Annotated[ApiKey, requires(Scope.PREDICTIONS_READ)]


@router.get("/model", response_model=ModelAnswer, responses=problems(401, 403, 503), summary="Describe the model")
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
