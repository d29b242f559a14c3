"""H on the live training rows, kept while the graph changes, and for the squared loss the sums over them.

A node's row of H follows from what lies within L hops of it. A batch changes the rows of the nodes within L hops of
those that it gives other neighbours, features or labels, and only these are computed again, when H is next asked for;
of their blocks only those of so many hops change. The normal equations of the squared loss then lose the rows as they
were and gain them as they are. Which rows they are comes from the batch: two graphs in which a node has as many
neighbours may be different ones.
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
from projector.network.representation import DenseRepresentation, Representation
from projector.parallel.workers import Workers, together
from projector.solvers.normal_equations import ChangedRows, NormalEquations, NormalObjective, targets_of
from projector.solvers.objective import Objective
from projector.solvers.preconditioners import why_no_preconditioner


class TrainingRows:
    """One's own rows of H, (n_own, p) float64, of one live graph, computed when they are first asked for."""

    def __init__(self, live_graph: LiveGraph) -> None:
        """Computes nothing yet."""
        self._graph = live_graph
        representation = live_graph.representation()
        #: H, maybe of an earlier graph, and the nodes (n_own,) of its rows.
        self._H: KeptRows | None = None
        self._nodes = self._own_nodes = live_graph.training_rows[representation.own]
        #: For each number of hops, from 0, the mask (n,) of the nodes whose blocks of so many hops are no longer those
        #: of the graph.
        self._changed = np.zeros((_depth(live_graph) + 1, live_graph.propagator.nodes), dtype=np.bool_)
        #: G and b of the rows of H as they are kept, with the labels or targets (n_own, …) that are in b.
        self._equations: NormalEquations | None = None
        self._labels: Tensor | None = None
        #: H H^T of the squared loss where H has fewer rows than columns; None where that is not kept.
        self._kernel = TrainingKernel(live_graph) if live_graph.keeps_kernel else None
        #: Whether H is that of this graph. Of all rows: workers compute together, also who has lost none of the own.
        self._is_known = False
        #: What is computed of H, with the columns that are still to come; None while nothing is.
        self._making: tuple[Tensor, Iterator[tuple[int, Tensor]]] | None = None

    @staticmethod
    @together
    def of(live_graph: LiveGraph) -> "TrainingRows":
        """Those of every worker."""
        return TrainingRows(live_graph)

    @property
    def workers(self) -> Workers:
        """Who has rows."""
        return self._graph.workers

    @property
    def keeps_dense(self) -> bool:
        """Whether products are taken with H itself, once it is computed."""
        return self._graph.keeps_dense

    @property
    def keeps_kernel(self) -> bool:
        """Whether repairs of the squared loss are preconditioned by its kernel."""
        return self._graph.keeps_kernel

    @property
    def factorises(self) -> bool:
        """Whether repairs go by a factor of the whole Hessian."""
        return self._graph.factorises

    @property
    def held_bytes(self) -> int:
        """What H takes already, and the sums over its rows."""
        held = 0 if self._H is None else self._H.numel
        held += 0 if self._equations is None else self._equations.G.numel()
        return 8 * held + (0 if self._kernel is None else self._kernel.held_bytes)

    def objective(self, regularization: float) -> Objective:
        """F^u on the graph; where products are by H, what is not known of it is computed first.

        For the squared loss by its normal equations, where these are kept.
        """
        if self._graph.keeps_equations:
            for _ in self.steps():
                pass
            return self._normal(self._graph.objective(regularization))
        objective = self.objective_by_rows(regularization)
        return objective if self._kernel is None else self._kernel.objective(objective)

    def objective_by_rows(self, regularization: float) -> Objective:
        """The same with all products by the rows of H, or through its factors."""
        graph, representation = self._graph, self._graph.representation()
        if graph.keeps_dense:
            for _ in self.steps():
                pass
            representation = self._dense(representation)
        return graph.objective_with(representation, regularization)

    def why_no_preconditioner(self, classes: int, free: int | None) -> str | None:
        """Why repairs go without a preconditioner, with `free` bytes beside `held_bytes`; None where they have one."""
        representation = self._graph.representation()
        rows, columns = representation.rows, representation.columns
        if self._graph.keeps_equations or self._graph.keeps_kernel:
            # Those before and after, and the factor; H where it is kept.
            needed = 8 * (3 * min(rows, columns) ** 2 + (rows * columns if self.keeps_dense else 0))
            if free is None or needed <= free:
                return None
            return f"it needs {needed:,} bytes of memory and {free:,} are free"
        return why_no_preconditioner(representation, classes, self.factorises, free)

    @together
    def _normal(self, objective: Objective) -> NormalObjective:
        """`objective` by the normal equations, which are known."""
        if self._equations is None:
            raise RuntimeError("the normal equations were not formed")
        squared = objective.representation.total(float(self._targets().square().sum()))
        return NormalObjective(
            objective.representation, objective.loss, objective.labels, objective.regularization,
            self._equations, squared,
        )  # fmt: skip

    @together
    def form_anew(self) -> None:
        """Forms the normal equations from all rows of H, which are known: what rounding has added up goes."""
        if self._H is None:
            raise RuntimeError("H was not computed")
        self._equations = NormalEquations.of(self._H.whole(), self._targets(), self._blocks, self.workers)

    @together
    def _dense(self, representation: Representation) -> DenseRepresentation:
        """`representation` by H, which is known."""
        return representation.with_dense(self.H())

    @together
    def on(self, live_graph: LiveGraph) -> "TrainingRows":
        """The rows on the graph that was made from this one's; shares H with this one."""
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
        """Overwrites, in place, the rows of H that are not those of this graph; earlier graphs must be gone.

        Sums that still hold them go too, since the rows can no longer be subtracted.
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
        """H, (n_own, p), not to be written to; with several workers once `steps` has computed it."""
        for _ in self.steps():
            pass
        if self._H is None:
            raise RuntimeError("H was not computed")
        return self._H.whole()

    def steps(self) -> Iterator[None]:
        """Computes H, as far as it is not known, in short steps; afterwards `H` has nothing left to do.

        What an earlier caller has left half done is gone on with.
        """
        while not self._is_known and self._advance():
            yield

    @together
    def _advance(self) -> bool:
        """Computes the few rows that have changed, or else some columns of all; whether there may be more to do."""
        # What is interrupted here by an error is begun anew: a generator that has raised looks like one at its end.
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
        """Has H with its rows `at` (k,) computed anew, `rows` (k, p), and all others as they were kept."""
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
        if summed:
            self._add_up(before, self._H, levels)
        self._nodes, self._labels, self._is_known = self._own_nodes, labels, True
        self._changed[:] = False

    def _keep_bits(self, before: KeptRows, at: NDArray[np.int64], rows: Tensor, levels: NDArray[np.int64]) -> None:
        """Gives those blocks of `rows` that cannot have changed the bits that they had, however they were computed.

        What is subtracted from the normal equations later has to be what was added.
        """
        kept = np.flatnonzero(levels[at] > 0)
        places = np.searchsorted(self._nodes, self._own_nodes[at[kept]])
        old = before.rows(torch.from_numpy(places).to(rows.device))
        for columns, hop in zip(self._blocks, self._hops, strict=True):
            same = levels[at[kept]] > hop
            new, chosen = (torch.from_numpy(each).to(rows.device) for each in (kept[same], np.flatnonzero(same)))
            rows[new, columns] = old[chosen, columns]

    def _add_up(
        self, before: KeptRows | None, H: KeptRows, levels: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    ) -> None:
        """Takes the normal equations from the rows `before` to `H`, by the `levels` of both, or forms them anew."""
        Y = self._targets()
        if before is None or levels is None or self._equations is None or self._labels is None:
            self._equations = NormalEquations.of(H.whole(), Y, self._blocks, self.workers)
            return
        earlier = targets_of(self._labels, Y.shape[1])
        was, now = (_changed(*each, self._hops) for each in ((before, earlier, levels[0]), (H, Y, levels[1])))
        self._equations = self._equations.after(was, now, H.whole, Y, self.workers)

    def _levels(self, labels: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For the rows that are kept, and for those of this graph, from how many hops on a node's blocks differ.

        0 for nodes that are trained on no longer, or only now, or with another target; more than all hops for a row
        that is the same.
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
        """Y of one's own rows, (n_own, C)."""
        return targets_of(self._graph.labels_of(self._own_nodes), self._graph.classes)

    @property
    def _hops(self) -> list[int]:
        """How many hops away each block reaches."""
        return [hop for each in self._graph.inputs for hop in each.operators.block_hops]

    @property
    def _blocks(self) -> tuple[slice, ...]:
        """The columns of each block."""
        inputs = self._graph.inputs
        widths = [each.rows.num_features for each in inputs for _ in each.operators.block_hops]
        return tuple(slice(stop - width, stop) for width, stop in zip(widths, accumulate(widths), strict=True))

    def _partly(self) -> tuple[NDArray[np.int64], Tensor] | None:
        """Which rows of H may have changed, and those rows; None where for one worker all at once cost less."""
        if self._H is None or self._H.shared.device.type != "cpu":
            return None
        nodes, propagator = self._own_nodes, self._graph.propagator
        wanted = nodes[self._changed[-1, nodes] | ~np.isin(nodes, self._nodes)]
        anew = image_rows(self._graph.inputs, wanted, propagator.edges.adjacency, propagator.live)
        worth = self.workers.sum(torch.tensor([anew is not None], dtype=torch.int64))
        if anew is None or int(worth) < self.workers.count:
            return None
        return np.searchsorted(nodes, wanted), anew


def _changed(H: KeptRows, Y: Tensor, levels: NDArray[np.int64], hops: Sequence[int]) -> ChangedRows:
    """Those of the rows H (n, p) with targets Y (n, C) that differ from some number of hops on, `levels` (n,)."""
    rows = np.flatnonzero(levels <= max(hops))
    rows = rows[np.argsort(levels[rows], kind="stable")]
    chosen = torch.from_numpy(rows).to(Y.device)
    leading = np.searchsorted(levels[rows], hops, side="right")
    return ChangedRows(H.rows(chosen), Y[chosen], tuple(leading.tolist()))


def _depth(graph: LiveGraph) -> int:
    return max(each.operators.block_hops[-1] for each in graph.inputs)


def _reached(graph: LiveGraph) -> NDArray[np.bool_]:
    """The nodes whose blocks of each number of hops can be others than on the graph that `graph` was made from.

    (depth + 1, n).
    """
    live, adjacency = graph.propagator.live, graph.propagator.edges.adjacency
    levels = [live if graph.edited is None else graph.edited]
    for _ in range(_depth(graph)):
        levels.append(neighbourhood(adjacency, levels[-1], live))
    return np.stack(levels)
