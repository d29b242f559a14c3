"""What was deleted and may still be on disk."""

import numpy as np
from numpy.typing import NDArray

from model_store.base.erasure import Erasure
from model_store.versions import VersionState


class ToErase:
    """What an erasure has to look for: at first all that was ever deleted, then what was since the last one."""

    def __init__(self, nodes: int, edges: NDArray[np.int64]) -> None:
        """Of a model of `nodes` nodes; `edges` (k, 2) are those deleted that may still be there."""
        self._nodes = np.ones(nodes, dtype=np.bool_)
        self._features = np.ones(nodes, dtype=np.bool_)
        self._edges = edges

    def add_edges(self, edges: NDArray[np.int64]) -> None:
        """Edges (k, 2) have been deleted. Nodes and features need no telling: a version says which are gone."""
        self._edges = np.concatenate([self._edges, edges])

    def erasure(self, committed: VersionState) -> Erasure:
        """What must go from the disk so that only what `committed` holds is left."""
        return Erasure(
            nodes=np.flatnonzero(self._nodes & ~committed.live),
            feature_rows=np.flatnonzero(self._features & committed.live & ~committed.featured),
            edges=self._edges,
        )

    def erased(self, committed: VersionState) -> None:
        """Only what `committed` holds is left."""
        self._nodes, self._features, self._edges = committed.live, committed.featured, self._edges[:0]
