"""What the prediction and model routes take and give."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from projector.forgetting.status import RepairStatus
from service.domain.states import Guarantee
from service.http.fields import Known, NodeIds


class PredictRequest(Known):
    """The nodes to predict."""

    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"nodes": ["12", "57"]}]})

    nodes: NodeIds = Field(description="Ids of nodes; repeated ids get repeated answers.")


class NodePrediction(BaseModel):
    """The class probabilities of one node within an answer for several."""

    node: str
    label: str = Field(description="The class with the highest exact probability.")
    probabilities: dict[str, float] = Field(
        description="Probability by class. Exact with the scope predictions:exact; otherwise each is rounded to "
        "LETHE_PREDICTION_DECIMALS, so they may not sum to 1."
    )


class NodeScores(BaseModel):
    """The predicted targets of one node within an answer for several, of a regression."""

    node: str
    scores: dict[str, float] = Field(description="Predicted value by target, rounded as probabilities are.")


class ScoresAnswer(NodeScores):
    """The predicted targets of one node, by one model version, of a regression."""

    model_config = ConfigDict(protected_namespaces=())

    model_version: int


_PREDICTION: dict[str, Any] = {"node": "12", "label": "3", "probabilities": {"0": 0.01, "1": 0.02, "3": 0.97}}


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


#: Members of a model that are null to keys without audit:read. They are computed from the exact weights, features or
#: graph, so a caller who has the data could test with them what was deleted.
AUDIT_ONLY = (
    *("edges", "rank", "condition_number", "span_residual", "distance_bound", "distance_bound_relative"),
    *("repair_progress", "weights_sha256", "accuracy", "regression"),
)
_AUDIT = "Null without audit:read."


class RepairProgressAnswer(BaseModel):
    """How far a repair that goes on has come."""

    iterations: int = Field(description="Steps so far.")
    products: int = Field(description="Products with the Hessian so far.")
    distance_bound_relative: float | None = Field(description="Bound of the best weights found so far.")


class NoiseAnswer(BaseModel):
    """How this version is published with noise."""

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
    condition_number: float | None = Field(description=f"Of the features at import, over the kept directions. {_AUDIT}")
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
    repair: RepairStatus = Field(description="Of the committed version.")
    repair_progress: RepairProgressAnswer | None = Field(description=f"While `repair` is pending. {_AUDIT}")
    guarantee: Guarantee
    device: str
    weights_sha256: str | None = Field(description=f"Salted if the weights are published with noise. {_AUDIT}")
    noise: NoiseAnswer | None = Field(description="Null if the weights are published without noise.")
