"""What is told of a model besides its predictions: of each import, and of each version."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelFacts:
    """What stays the same from one import to the next."""

    name: str
    #: Rows of the graph at training, deleted ones as well.
    nodes: int
    #: Columns of the features.
    features: int
    classes: tuple[str, ...]
    hops: int
    combine: str
    propagation: str
    loss: str
    #: lambda.
    regularization: float
    #: Of the features at training.
    condition_number: float


@dataclass(frozen=True)
class VersionFacts:
    """What each version has anew."""

    version: int
    live_nodes: int
    #: Edges between live nodes.
    edges: int
    #: Of the live nodes' features.
    rank: int
    #: Bound on the distance of W to retraining; None for a loss that no certificate exists for.
    distance_bound: float | None
    #: The same, relative to |W|; None too for W = 0.
    distance_bound_relative: float | None
    #: Where it was computed.
    device: str


@dataclass(frozen=True)
class Facts:
    """What a reader tells of the version it serves, all of one moment."""

    model: ModelFacts
    served: VersionFacts
