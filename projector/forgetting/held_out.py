"""Labelled nodes that are not trained on, to see how well a model predicts what is left of them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from projector.graph.graph import Graph


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The validation or test nodes that are left."""

    #: Their rows, (m,), and their classes (m,) or real-valued targets (m, C).
    rows: NDArray[np.int64]
    truth: NDArray[np.int64] | NDArray[np.float64]

    @classmethod
    def of(cls, graph: Graph, mask: NDArray[np.bool_]) -> "HeldOut":
        """Return the nodes in `mask` (n,) of a graph."""
        rows = np.flatnonzero(mask)
        return cls(rows, (graph.labels if graph.values is None else graph.values)[rows])

    def without(self, *gone: NDArray[np.int64]) -> "HeldOut":
        """Return them without these rows."""
        kept = ~np.isin(self.rows, np.concatenate(gone))
        return self if kept.all() else HeldOut(self.rows[kept], self.truth[kept])

    def score(self, outputs: NDArray[np.float64]) -> float | None:
        """Return the accuracy of `outputs` (n, C), or R^2 for real-valued targets; None if it is undefined."""
        found = outputs[self.rows]
        if self.truth.ndim == 1:
            return float((found.argmax(axis=1) == self.truth).mean()) if self.rows.size else None
        spread = float(np.square(self.truth - self.truth.mean(axis=0)).sum()) if self.rows.size else 0.0
        return 1 - float(np.square(self.truth - found).sum()) / spread if spread > 0 else None
