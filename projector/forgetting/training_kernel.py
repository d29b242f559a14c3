"""H H^T of the live training rows, maintained while the graph changes."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.forgetting.live_graph import LiveGraph
from projector.network.image_rows import image_rows
from projector.solvers.kernel import KernelObjective, kernel_of
from projector.solvers.objective import Objective


class TrainingKernel:
    """K = H H^T, (n_train, n_train) float64, of one live graph, computed on first use; for one worker."""

    def __init__(self, live_graph: LiveGraph) -> None:
        """Compute nothing yet."""
        self._graph = live_graph
        #: K, possibly of an earlier graph, and the nodes (n_train,) of its rows.
        self._K: Tensor | None = None
        self._nodes = live_graph.training_rows
        #: Mask (n,) of the nodes whose rows of H differ from those in K.
        self._changed = np.zeros(live_graph.propagator.nodes, dtype=np.bool_)

    @property
    def held_bytes(self) -> int:
        """Return the bytes that K uses so far."""
        return 0 if self._K is None else 8 * self._K.numel()

    def on(self, live_graph: LiveGraph, reached: NDArray[np.bool_]) -> "TrainingKernel":
        """Return the kernel of a later graph, sharing K; the rows of H of the nodes `reached` (n,) may differ there."""
        later = TrainingKernel(live_graph)
        later._K, later._nodes, later._changed = self._K, self._nodes, reached.copy()
        later._changed[: self._changed.size] |= self._changed
        return later

    def forget(self) -> None:
        """Overwrite in place what K holds of rows outside of this graph. Earlier graphs must be gone."""
        if self._K is not None:
            lost = self._changed[self._nodes] | ~np.isin(self._nodes, self._graph.training_rows)
            places = torch.from_numpy(np.flatnonzero(lost)).to(self._K.device)
            self._K[places] = 0.0
            self._K[:, places] = 0.0

    def objective(self, objective: Objective) -> KernelObjective:
        """Return `objective`, of this graph, with its kernel."""
        nodes = self._graph.training_rows
        stale = self._changed[nodes] | ~np.isin(nodes, self._nodes)
        if self._K is None or stale.any() or not np.array_equal(nodes, self._nodes):
            self._K = self._updated(nodes, stale, objective)
            self._nodes, self._changed = nodes, np.zeros_like(self._changed)
        return KernelObjective(
            objective.representation, objective.loss, objective.labels, objective.regularization, self._K, nodes
        )

    def _updated(self, nodes: NDArray[np.int64], stale: NDArray[np.bool_], objective: Objective) -> Tensor:
        """Return K for `nodes` (m,), computing the rows and columns `stale` (m,) and keeping the others."""
        representation, propagator = objective.representation, self._graph.propagator
        rows: Tensor | None = None
        if self._K is not None and 2 * stale.sum() < nodes.size and self._K.device.type == "cpu":
            rows = image_rows(self._graph.inputs, nodes[stale], propagator.edges.adjacency, propagator.live)
        if self._K is None or rows is None:
            return kernel_of(representation)
        places = torch.from_numpy(np.searchsorted(self._nodes, nodes).clip(max=self._nodes.size - 1))
        K = self._K[places][:, places]
        anew = torch.from_numpy(np.flatnonzero(stale))
        products = representation.logits(rows.T.contiguous())
        K[:, anew] = products
        K[anew] = products.T
        return K
