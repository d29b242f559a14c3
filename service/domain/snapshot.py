"""A readers' view of a model: the predictions and edges of one version."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from projector.graph.edges import Edges
from service.domain.versions import Drift


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The predictions of one model version on the graph of its live nodes.

    The snapshot owns its arrays; do not write to them after construction.
    """

    #: Model version that computed the predictions.
    version: int
    #: Class probabilities, (n, C) float64; rows of deleted nodes are zero.
    probabilities: NDArray[np.float64]
    #: Which nodes are live, (n,) bool.
    live: NDArray[np.bool_]
    #: The edges between live nodes.
    edges: Edges
    drift: Drift = field(default_factory=Drift)

    def __post_init__(self) -> None:
        """Raise ValueError when the array shapes disagree."""
        nodes = self.edges.adjacency.shape[0]
        if self.probabilities.ndim != 2 or not (self.live.shape == self.probabilities.shape[:1] == (nodes,)):
            raise ValueError(
                f"probabilities have shape {self.probabilities.shape}, live {self.live.shape} and the edges {nodes} "
                "nodes; they must be (n, C), (n,) and n with the same n"
            )
