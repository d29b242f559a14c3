"""H on the live training rows, maintained while the graph changes, and the sums over them for the squared loss.

A node's row of H depends on its L-hop neighbourhood. A batch changes the rows of nodes within L hops of those whose
neighbours, features or labels change. Only these rows are computed again, on the next use of H, and only the blocks
with enough hops change in them. The normal equations of the squared loss then subtract the old rows and add the new
ones. The batch determines which rows those are: two graphs in which a node has equally many neighbours may differ.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.forgetting.kept_rows import KeptRows
from projector.forgetting.live_graph import LiveGraph
from projector.forgetting.training_kernel import TrainingKernel
from projector.network.image_rows import image_rows, neighbourhood
from projector.network.losses import row_weights
from projector.network.representation import DenseRepresentation, Representation
from projector.parallel.workers import Workers, together
from projector.solvers.normal_equations import ChangedRows, NormalEquations, NormalObjective, targets_of
from projector.solvers.objective import Objective
from projector.solvers.preconditioners import why_no_preconditioner


class TrainingRows:
    """One worker's own rows of H, (n_own, p) float64, of one live graph, computed on first use."""

    def __init__(self, live_graph: LiveGraph) -> None:
        """Compute nothing yet."""
        self._graph = live_graph
        representation = live_graph.representation()
        #: H, possibly of an earlier graph, and the nodes (n_own,) of its rows.
        self._H: KeptRows | None = None
        self._nodes = self._own_nodes = live_graph.training_rows[representation.own]
        #: For each number of hops, from 0, the mask (n,) of the nodes whose blocks of that many hops are outdated.
        self._changed = np.zeros((_depth(live_graph) + 1, live_graph.propagator.nodes), dtype=np.bool_)
        #: G and b of the stored rows of H, with the labels or targets (n_own, …) included in b.
        self._equations: NormalEquations | None = None
        self._labels: Tensor | None = None
        #: H H^T of the squared loss if H has fewer rows than columns; None if it is not kept.
        self._kernel = TrainingKernel(live_graph) if live_graph.keeps_kernel else None
        #: Whether H is current on all workers: they compute together, even those whose own rows did not change.
        self._is_known = False
        #: A partly computed H with its remaining columns; None if nothing is under way.
        self._making: tuple[Tensor, Iterator[tuple[int, Tensor]]] | None = None

    @staticmethod
    @together
    def of(live_graph: LiveGraph) -> "TrainingRows":
        """Return the rows of every worker."""
        return TrainingRows(live_graph)

    @property
    def workers(self) -> Workers:
        """The workers that hold rows."""
        return self._graph.workers

    @property
    def keeps_dense(self) -> bool:
        """Whether products use H itself, once computed."""
        return self._graph.keeps_dense

    @property
    def keeps_kernel(self) -> bool:
        """Whether the kernel preconditions repairs of the squared loss."""
        return self._graph.keeps_kernel

    @property
    def factorises(self) -> bool:
        """Whether repairs use a factor of the whole Hessian."""
        return self._graph.factorises

    @property
    def held_bytes(self) -> int:
        """Return the bytes that H and the sums over its rows use so far."""
        held = 0 if self._H is None else self._H.numel
        held += 0 if self._equations is None else self._equations.G.numel()
        return 8 * held + (0 if self._kernel is None else self._kernel.held_bytes)

    def objective(self, regularization: float) -> Objective:
        """Return F^u on the graph, first computing the unknown part of H if products use it.

        Uses the normal equations for the squared loss if they are kept.
        """
        if self._graph.keeps_equations:
            for _ in self.steps():
                pass
            return self._normal(self._graph.objective(regularization))
        objective = self.objective_by_rows(regularization)
        return objective if self._kernel is None else self._kernel.objective(objective)

    def objective_by_rows(self, regularization: float) -> Objective:
        """Return the same objective with all products by the rows of H, or through its factors."""
        graph, representation = self._graph, self._graph.representation()
        if graph.keeps_dense:
            for _ in self.steps():
                pass
            representation = self._dense(representation)
        return graph.objective_with(representation, regularization)

    def why_no_preconditioner(self, classes: int, free: int | None) -> str | None:
        """Return why repairs lack a preconditioner, with `free` bytes beside `held_bytes`; None if they have one."""
        representation = self._graph.representation()
        rows, columns = representation.rows, representation.columns
        if self._graph.keeps_equations or self._graph.keeps_kernel:
            # The matrices before and after, and the factor; H if it is kept.
            needed = 8 * (3 * min(rows, columns) ** 2 + (rows * columns if self.keeps_dense else 0))
            if free is None or needed <= free:
                return None
            return f"it needs {needed:,} bytes of memory and {free:,} are free"
        return why_no_preconditioner(representation, classes, self.factorises, free)

    @together
    def _normal(self, objective: Objective) -> NormalObjective:
        """Return `objective` by the known normal equations."""
        if self._equations is None:
            raise RuntimeError("the normal equations were not formed")
        squares, weights = self._targets().square().sum(dim=1), self._weights(objective.labels)
        squared = objective.representation.total(float((squares if weights is None else squares * weights).sum()))
        return NormalObjective(
            objective.representation, objective.loss, objective.labels, objective.regularization,
            self._equations, squared,
        )  # fmt: skip

    @together
    def form_anew(self) -> None:
        """Form the normal equations again from all rows of the known H, which clears accumulated rounding."""
        if self._H is None:
            raise RuntimeError("H was not computed")
        weights = self._weights(self._graph.labels_of(self._own_nodes))
        self._equations = NormalEquations.of(self._H.whole(), self._targets(), self._blocks, self.workers, weights)

    @together
    def _dense(self, representation: Representation) -> DenseRepresentation:
        """Return `representation` by the known H."""
        return representation.with_dense(self.H())

    @together
    def on(self, live_graph: LiveGraph) -> "TrainingRows":
        """Return the rows on a graph derived from this one, sharing H."""
        rows = TrainingRows(live_graph)
        if self._H is None and self._kernel is None:
            return rows
        reached = _reached(live_graph)
        if self._kernel is not None and live_graph.keeps_kernel:
            rows._kernel = self._kernel.on(live_graph, reached[-1])
        if self._H is None:
            return rows
        rows._H, rows._nodes = self._H, self._nodes
        rows._equations, rows._labels = self._equations, self._labels
        reached[:, : self._changed.shape[1]] |= self._changed
        rows._changed = reached
        same = np.array_equal(live_graph.targets, self._graph.targets)
        rows._is_known = self._is_known and same and not rows._changed.any()
        return rows

    @together
    def forget(self) -> None:
        """Overwrite in place the rows of H outside of this graph. Earlier graphs must be gone.

        Sums that still include them go too, since the rows can no longer be subtracted.
        """
        if self._kernel is not None:
            self._kernel.forget()
        if self._H is None:
            return
        used = ~self._changed[-1, self._nodes] & np.isin(self._nodes, self._own_nodes)
        self._H.forget(torch.from_numpy(used).to(self._H.shared.device))
        if self._equations is not None and not self._is_known:
            self._equations.forget()
            self._equations = self._labels = None

    def H(self) -> Tensor:
        """Return H, (n_own, p), read only. With several workers, `steps` must have computed it."""
        for _ in self.steps():
            pass
        if self._H is None:
            raise RuntimeError("H was not computed")
        return self._H.whole()

    def steps(self) -> Iterator[None]:
        """Compute the unknown part of H in short steps, continuing what an earlier caller left half done."""
        while not self._is_known and self._advance():
            yield

    @together
    def _advance(self) -> bool:
        """Compute the few changed rows, or else some columns of all rows. Return whether more may remain."""
        # Restart after an error: a generator that raised looks exhausted.
        making, self._making = self._making, None
        if making is None:
            if (partly := self._partly()) is not None:
                self._take(*partly)
                return False
            representation = self._graph.representation()
            making = representation.empty(), representation.column_chunks()
        H, chunks = making
        for start, columns in chunks:
            H[:, start : start + columns.shape[1]] = columns
            self._making = making
            return True
        self._take(np.arange(self._own_nodes.size), H)
        return False

    def _take(self, at: NDArray[np.int64], rows: Tensor) -> None:
        """Take H with its rows `at` (k,) recomputed as `rows` (k, p), and all others as stored."""
        before = self._H
        whole, summed = before is None or at.size == self._own_nodes.size, self._graph.keeps_equations
        updated = summed and before is not None and self._equations is not None and self._labels is not None
        labels = self._graph.labels_of(self._own_nodes) if summed else None
        levels = self._levels(labels) if updated and labels is not None else None
        if before is not None and levels is not None:
            self._keep_bits(before, at, rows, levels[1])
        if before is None or whole:
            self._H = KeptRows.of(rows)
        else:
            old = np.searchsorted(self._nodes, self._own_nodes).clip(max=self._nodes.size - 1)
            was, changed = (torch.from_numpy(each).to(rows.device) for each in (old, at))
            self._H = before.changed(was, changed, rows).settled(in_one=not summed)
        if labels is not None:
            self._add_up(before, self._H, levels, labels)
        self._nodes, self._labels, self._is_known = self._own_nodes, labels, True
        self._changed[:] = False

    def _keep_bits(self, before: KeptRows, at: NDArray[np.int64], rows: Tensor, levels: NDArray[np.int64]) -> None:
        """Restore the stored bits of those blocks of `rows` that cannot have changed.

        The normal equations must later subtract exactly what they added.
        """
        kept = np.flatnonzero(levels[at] > 0)
        places = np.searchsorted(self._nodes, self._own_nodes[at[kept]])
        old = before.rows(torch.from_numpy(places).to(rows.device))
        for columns, hop in zip(self._blocks, self._hops, strict=True):
            same = levels[at[kept]] > hop
            new, chosen = (torch.from_numpy(each).to(rows.device) for each in (kept[same], np.flatnonzero(same)))
            rows[new, columns] = old[chosen, columns]

    def _add_up(
        self,
        before: KeptRows | None,
        H: KeptRows,
        levels: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
        labels: Tensor,
    ) -> None:
        """Update the normal equations from the rows `before` to `H`, by the `levels` of both, or form them again."""
        Y, weights = self._targets(), self._weights(labels)
        if before is None or levels is None or self._equations is None or self._labels is None:
            self._equations = NormalEquations.of(H.whole(), Y, self._blocks, self.workers, weights)
            return
        earlier = targets_of(self._labels, Y.shape[1])
        was = _changed(before, earlier, self._weights(self._labels), levels[0], self._hops)
        now = _changed(H, Y, weights, levels[1], self._hops)
        self._equations = self._equations.after(was, now, H.whole, Y, self.workers, weights)

    def _levels(self, labels: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, for the stored and the current rows, the number of hops from which a node's blocks differ.

        0 for nodes that left or joined training or have another target; more than all hops for an unchanged row.
        """
        first = np.where(self._changed.any(axis=0), self._changed.argmax(axis=0), len(self._changed))
        before, after = first[self._nodes], first[self._own_nodes]
        lost, gained = ~np.isin(self._nodes, self._own_nodes), ~np.isin(self._own_nodes, self._nodes)
        before[lost], after[gained] = 0, 0
        if self._labels is not None:
            both = self._own_nodes[~gained]
            earlier = self._labels[torch.from_numpy(np.searchsorted(self._nodes, both)).to(labels.device)]
            other = earlier != labels[torch.from_numpy(np.flatnonzero(~gained)).to(labels.device)]
            corrected = both[(other if other.dim() == 1 else other.any(dim=1)).cpu().numpy()]
            before[np.searchsorted(self._nodes, corrected)] = 0
            after[np.searchsorted(self._own_nodes, corrected)] = 0
        return before, after

    def _targets(self) -> Tensor:
        """Return Y of the worker's own rows, (n_own, C)."""
        return targets_of(self._graph.labels_of(self._own_nodes), self._graph.classes)

    def _weights(self, labels: Tensor) -> Tensor | None:
        """Return the weights of rows with these targets, (n_own,); None if all are 1."""
        return row_weights(self._graph.loss, labels)

    @property
    def _hops(self) -> list[int]:
        """The number of hops of each block."""
        return [hop for each in self._graph.inputs for hop in each.operators.block_hops]

    @property
    def _blocks(self) -> tuple[slice, ...]:
        """The columns of each block."""
        inputs = self._graph.inputs
        widths = [each.rows.num_features for each in inputs for _ in each.operators.block_hops]
        return tuple(slice(stop - width, stop) for width, stop in zip(widths, accumulate(widths), strict=True))

    def _partly(self) -> tuple[NDArray[np.int64], Tensor] | None:
        """Return which rows of H may have changed and those rows; None if computing all is cheaper for some worker."""
        if self._H is None or self._H.shared.device.type != "cpu":
            return None
        nodes, propagator = self._own_nodes, self._graph.propagator
        wanted = nodes[self._changed[-1, nodes] | ~np.isin(nodes, self._nodes)]
        anew = image_rows(self._graph.inputs, wanted, propagator.edges.adjacency, propagator.live)
        worth = self.workers.sum(torch.tensor([anew is not None], dtype=torch.int64))
        if anew is None or int(worth) < self.workers.count:
            return None
        return np.searchsorted(nodes, wanted), anew


def _changed(
    H: KeptRows, Y: Tensor, weights: Tensor | None, levels: NDArray[np.int64], hops: Sequence[int]
) -> ChangedRows:
    """Return the rows H (n, p), with targets Y (n, C) and `weights`, that differ from some hop on, `levels` (n,)."""
    rows = np.flatnonzero(levels <= max(hops))
    rows = rows[np.argsort(levels[rows], kind="stable")]
    chosen = torch.from_numpy(rows).to(Y.device)
    leading = np.searchsorted(levels[rows], hops, side="right")
    return ChangedRows(H.rows(chosen), Y[chosen], tuple(leading.tolist()), None if weights is None else weights[chosen])


def _depth(graph: LiveGraph) -> int:
    return max(each.operators.block_hops[-1] for each in graph.inputs)


def _reached(graph: LiveGraph) -> NDArray[np.bool_]:
    """Return for each number of hops the nodes whose blocks may differ from the graph that `graph` came from.

    (depth + 1, n).
    """
    live, adjacency = graph.propagator.live, graph.propagator.edges.adjacency
    levels = [live if graph.edited is None else graph.edited]
    for _ in range(_depth(graph)):
        levels.append(neighbourhood(adjacency, levels[-1], live))
    return np.stack(levels)
