"""H on the live training rows, kept while the graph changes.

A node's row of H follows from what lies within L hops of it. A batch changes the rows of the nodes within L hops of
those that it gives other neighbours, features or labels, and only these are computed again, when H is next asked for.
Which they are comes from the batch: two graphs in which a node has as many neighbours may be different ones.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.forgetting.live_graph import LiveGraph
from projector.network.image_rows import image_rows, neighbourhood
from projector.network.representation import DenseRepresentation, Representation
from projector.parallel.workers import Workers, together
from projector.solvers.objective import Objective


class TrainingRows:
    """One's own rows of H, (n_own, p) float64, of one live graph, computed when they are first asked for."""

    def __init__(self, live_graph: LiveGraph) -> None:
        """Computes nothing yet."""
        self._graph = live_graph
        representation = live_graph.representation()
        #: H, maybe of an earlier graph, and the nodes (n_own,) of its rows.
        self._H: Tensor | None = None
        self._nodes = self._own_nodes = live_graph.training_rows[representation.own]
        #: Mask (n,) of the nodes whose rows of H are no longer those of the graph.
        self._changed = np.zeros(live_graph.propagator.nodes, dtype=np.bool_)
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
    def factorises(self) -> bool:
        """Whether repairs go by a factor of the whole Hessian."""
        return self._graph.factorises

    @property
    def held_bytes(self) -> int:
        """What H takes already."""
        return 0 if self._H is None else 8 * self._H.numel()

    def objective(self, regularization: float) -> Objective:
        """F^u on the graph; where products are by H, what is not known of it is computed first."""
        graph, representation = self._graph, self._graph.representation()
        if graph.keeps_dense:
            for _ in self.steps():
                pass
            representation = self._dense(representation)
        return graph.objective_with(representation, regularization)

    @together
    def _dense(self, representation: Representation) -> DenseRepresentation:
        """`representation` by H, which is known."""
        return representation.with_dense(self.H())

    @together
    def on(self, live_graph: LiveGraph) -> "TrainingRows":
        """The rows on the graph that was made from this one's; shares H with this one."""
        rows = TrainingRows(live_graph)
        if self._H is None:
            return rows
        rows._H, rows._nodes = self._H, self._nodes
        rows._changed = _reached(live_graph)
        rows._changed[: self._changed.size] |= self._changed
        same = np.array_equal(live_graph.training_rows, self._graph.training_rows)
        rows._is_known = self._is_known and same and not rows._changed.any()
        return rows

    @together
    def forget(self) -> None:
        """Overwrites, in place, the rows of H that are not those of this graph; earlier graphs must be gone."""
        if self._H is not None:
            lost = self._changed[self._nodes] | ~np.isin(self._nodes, self._own_nodes)
            self._H[torch.from_numpy(np.flatnonzero(lost)).to(self._H.device)] = 0.0

    def H(self) -> Tensor:
        """H, (n_own, p), not to be written to; with several workers once `steps` has computed it."""
        for _ in self.steps():
            pass
        if self._H is None:
            raise RuntimeError("H was not computed")
        return self._H

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
                self._take(partly)
                return False
            representation = self._graph.representation()
            making = representation.empty(), representation.column_chunks()
        H, chunks = making
        for start, columns in chunks:
            H[:, start : start + columns.shape[1]] = columns
            self._making = making
            return True
        self._take(H)
        return False

    def _take(self, H: Tensor) -> None:
        self._H, self._nodes, self._is_known = H, self._own_nodes, True
        self._changed[:] = False

    def _partly(self) -> Tensor | None:
        """H with only those rows computed that may have changed; None where for one worker all at once cost less."""
        if self._H is None or self._H.device.type != "cpu":
            return None
        nodes, propagator = self._own_nodes, self._graph.propagator
        at_hand = ~self._changed[nodes] & np.isin(nodes, self._nodes)
        wanted = nodes[~at_hand]
        anew = image_rows(self._graph.inputs, wanted, propagator.edges.adjacency, propagator.live)
        worth = self.workers.sum(torch.tensor([anew is not None], dtype=torch.int64))
        if anew is None or int(worth) < self.workers.count:
            return None
        # Whatever stands in the places of those that are new is written over.
        places = np.searchsorted(self._nodes, nodes).clip(max=max(self._nodes.size - 1, 0))
        H = self._H[torch.from_numpy(places)] if self._nodes.size else self._H.new_empty((nodes.size, anew.shape[1]))
        H[torch.from_numpy(np.flatnonzero(~at_hand))] = anew
        return H


def _reached(graph: LiveGraph) -> NDArray[np.bool_]:
    """The mask (n,) of the nodes whose rows of H can be others than on the graph that `graph` was made from."""
    live, adjacency = graph.propagator.live, graph.propagator.edges.adjacency
    if graph.edited is None:
        return live.copy()
    reached = graph.edited
    for _ in range(max(each.operators.block_hops[-1] for each in graph.inputs)):
        reached = neighbourhood(adjacency, reached, live)
    return reached
