"""H on the live training rows, kept while the graph shrinks.

A node's row of H follows from what lies within L hops of it. A batch changes the rows of the nodes within L hops of
those that lost a neighbour or their features, and only these are computed again, when H is next asked for.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.forgetting.live_graph import LiveGraph
from projector.network.image_rows import image_rows, neighbourhood
from projector.network.representation import DenseRepresentation
from projector.solvers.objective import Objective


class TrainingRows:
    """H (n_train, p) float64 of one live graph, computed when it is first asked for."""

    def __init__(self, live_graph: LiveGraph) -> None:
        """Computes nothing yet."""
        self._graph = live_graph
        #: H, maybe of an earlier graph, and the nodes (n_train,) of its rows.
        self._H: Tensor | None = None
        self._nodes = live_graph.training_rows
        #: Mask (n,) of the nodes whose rows of H are no longer those of the graph.
        self._changed = np.zeros(live_graph.propagator.nodes, dtype=np.bool_)

    @property
    def keeps_dense(self) -> bool:
        """Whether products are taken with H itself, once it is computed."""
        return self._graph.keeps_dense

    @property
    def factorises(self) -> bool:
        """Whether repairs go by a factor of the whole Hessian."""
        return self._graph.factorises

    @property
    def held_bytes(self) -> int:
        """What H takes already."""
        return 0 if self._H is None else 8 * self._H.numel()

    def objective(self, regularization: float) -> Objective:
        """F^u on the graph; where products are by H, what is not known of it is computed first."""
        objective = self._graph.objective(regularization)
        if not self._graph.keeps_dense:
            return objective
        H = self.H()
        return replace(objective, representation=DenseRepresentation(self._graph.inputs, self._nodes, H))

    def on(self, live_graph: LiveGraph) -> "TrainingRows":
        """The rows on a later graph, one that has lost nodes, edges or features; shares H with this one."""
        rows = TrainingRows(live_graph)
        if self._H is None:
            return rows
        rows._H, rows._nodes = self._H, self._nodes
        rows._changed = self._changed | _reached(self._graph, live_graph)
        return rows

    def forget(self) -> None:
        """Overwrites, in place, the rows of H that are not those of this graph; earlier graphs must be gone."""
        if self._H is not None:
            lost = self._changed[self._nodes] | ~np.isin(self._nodes, self._graph.training_rows)
            self._H[torch.from_numpy(np.flatnonzero(lost)).to(self._H.device)] = 0.0

    def H(self) -> Tensor:
        """H, (n_train, p), not to be written to."""
        for _ in self.steps():
            pass
        if self._H is None:
            raise RuntimeError("H was not computed")
        return self._H

    def steps(self) -> Iterator[None]:
        """Computes H, as far as it is not known, in short steps; afterwards `H` has nothing left to do."""
        nodes = self._graph.training_rows
        if self._H is not None and not self._changed.any() and nodes.size == self._nodes.size:
            return
        partly = self._partly(nodes)
        if partly is None:
            # lambda plays no part in H.
            representation = self._graph.objective(1.0).representation
            partly = representation.empty()
            for start, columns in representation.column_chunks():
                partly[:, start : start + columns.shape[1]] = columns
                yield
        self._H, self._nodes = partly, nodes
        self._changed[:] = False

    def _partly(self, nodes: NDArray[np.int64]) -> Tensor | None:
        """H with only those rows computed that may have changed; None where all at once cost less."""
        if self._H is None or self._H.device.type != "cpu":
            return None
        wanted, propagator = nodes[self._changed[nodes]], self._graph.propagator
        anew = image_rows(self._graph.inputs, wanted, propagator.edges.adjacency, propagator.live)
        if anew is None:
            return None
        H = self._H[torch.from_numpy(np.searchsorted(self._nodes, nodes))]
        H[torch.from_numpy(np.searchsorted(nodes, wanted))] = anew
        return H


def _reached(before: LiveGraph, after: LiveGraph) -> NDArray[np.bool_]:
    """The mask (n,) of the nodes whose rows of H can differ between two graphs."""
    live, adjacency = after.propagator.live, after.propagator.edges.adjacency
    reached: NDArray[np.bool_] = live & (before.propagator.neighbours != after.propagator.neighbours)
    earlier, later = before.inputs.features.kept, after.inputs.features.kept
    if later is not None:
        reached |= live & ~later & (True if earlier is None else earlier)
    for _ in range(max(each.operators.depth for each in after.inputs)):
        reached = neighbourhood(adjacency, reached, live)
    return reached
