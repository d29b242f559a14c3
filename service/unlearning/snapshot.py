"""What readers see of a model: the predictions of one version."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The predictions of one model version on the graph of its live nodes.

    The arrays belong to the snapshot: whoever makes one does not write to them afterwards.
    """

    #: The model version that computed the predictions.
    version: int
    #: Class probabilities, (n, C) float64; the rows of nodes no longer live are zero.
    probabilities: NDArray[np.float64]
    #: Which nodes are live, (n,) bool.
    live: NDArray[np.bool_]

    def __post_init__(self) -> None:
        """Raise ValueError when the two arrays are not of one model."""
        if self.probabilities.ndim != 2 or self.live.shape != self.probabilities.shape[:1]:
            raise ValueError(
                f"probabilities have shape {self.probabilities.shape} and live {self.live.shape}; "
                "they must be (n, C) and (n,) with the same n"
            )
