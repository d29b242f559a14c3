"""The graph of the live nodes and the predictions on it."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.forgetting.batch import ModelState
from projector.forgetting.gram import Gram, factorise
from projector.forgetting.joining import Joining
from projector.forgetting.optimum import stacked
from projector.graph.features import FeatureMatrix
from projector.graph.graph import NO_LABEL, Graph, one_hot
from projector.network.diffusion import Diffusion
from projector.network.image_rows import image_rows
from projector.network.inputs import Inputs, inputs_of
from projector.network.losses import Loss, loss_of
from projector.network.product_costs import keeps_dense
from projector.network.propagation import Propagator
from projector.network.representation import Representation
from projector.network.sizes import Sizes
from projector.network.spec import ModelSpec, SolverKind
from projector.parallel.workers import ALONE, Division, Workers, together
from projector.solvers.objective import Objective
from projector.solvers.preconditioners import takes_whole

#: Computing H takes about as long as d / (2 C) products through its factors, and a repair by a factor of the whole
#: Hessian takes 20 to 50 products: H pays up to this many times C features. [100,000 nodes, d = 32, C = 8, 64 deleted:
#: 0.43 s with H, 3.4 s without.]
_FEATURES_PER_CLASS = 16
_NO_ROWS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class LiveGraph:
    """Propagation over the live nodes; what leaves or joins gives a new one and leaves this one as it is."""

    #: The inputs' rows as last stored, and their operators over the live nodes.
    inputs: Inputs
    propagator: Propagator
    loss: Loss
    #: Classes by row, (n,) int64, of the nodes that were trained on; `NO_LABEL` for all others. Not to be written to.
    targets: NDArray[np.int64]
    #: Whether products with its training rows are taken with H itself, once that is computed.
    keeps_dense: bool
    #: Whether repairs go by a factor of the whole Hessian, so that a few products suffice.
    factorises: bool
    workers: Workers = ALONE
    #: The node at which the training rows of each worker but the first begin; they stay there, so that nodes that join
    #: are the last worker's.
    bounds: tuple[int, ...] = ()
    #: Mask (n,) of the nodes with other neighbours, features or label than in the graph this one was made from.
    edited: NDArray[np.bool_] | None = None

    @classmethod
    def of(
        cls,
        graph: Graph,
        spec: ModelSpec,
        diffusion: Diffusion | None,
        *,
        live: NDArray[np.bool_],
        featured: NDArray[np.bool_],
        device: torch.device | str,
        count: Callable[[int], None] | None = None,
    ) -> "LiveGraph":
        """The nodes `live` (n,) of `graph`, of which `featured` (n,) still have their features, on `device`.

        `count` as for `Propagator.build`.
        """
        propagator = Propagator.build(
            graph.adjacency, spec.propagation, spec.self_loops, live=live, device=device, count=count
        )
        training = graph.train_mask & live
        labels = one_hot(graph.labels, training, graph.num_classes)
        rows = FeatureMatrix(graph.features, device)
        inputs = inputs_of(spec, rows, labels, propagator, diffusion, featured)
        loss, targets = loss_of(spec.loss), np.where(training, graph.labels, NO_LABEL)
        whole = takes_whole(Representation(inputs, np.flatnonzero(training)), graph.num_classes, loss)
        sizes = Sizes.of(graph)
        # Repair is by Newton's method, whatever has trained; computing H anew has to be worth the products it saves.
        cheap = not whole or sizes.width(spec) <= _FEATURES_PER_CLASS * sizes.classes
        dense = cheap and keeps_dense(replace(spec, solver=SolverKind.NEWTON), sizes)
        return cls(inputs, propagator, loss, targets, dense, whole)

    def shared_by(self, workers: Workers) -> "LiveGraph":
        """The same graph for several workers, of whom each has made it: they divide its training rows."""
        rows = self.training_rows
        begins = [part.start for part in Division.evenly(rows.size, workers.count).parts[1:]]
        bounds = tuple(int(rows[begin]) if begin < rows.size else self.propagator.nodes for begin in begins)
        shared = replace(self, workers=workers, bounds=bounds)
        workers.knows(shared)
        return shared

    @together
    def without(
        self,
        nodes: NDArray[np.int64],
        edges: NDArray[np.int64],
        feature_rows: NDArray[np.int64],
        label_rows: NDArray[np.int64] = _NO_ROWS,
    ) -> "LiveGraph":
        """The graph without `nodes` (m,), `edges` (k, 2), and the features and labels of other nodes.

        Those are `feature_rows` (l,) and `label_rows` (r,). A node takes its edges, its degree, its label and its
        prediction with it; without its label it is not trained on, and its label is no input.
        """
        propagator, targets = self.propagator, self.targets.copy()
        if nodes.size:
            propagator = propagator.without_nodes(nodes)
        if edges.size:
            propagator = propagator.without_edges(edges)
        targets[nodes] = targets[label_rows] = NO_LABEL
        inputs = self.inputs.without(nodes, edges, feature_rows, label_rows, propagator)
        rewired = np.concatenate([self.propagator.neighbours_of(nodes), edges.ravel()])
        edited = self._edited(propagator, rewired, feature_rows, label_rows)
        return replace(self, inputs=inputs, propagator=propagator, targets=targets, edited=edited)

    def joined(self, joining: Joining, classes: int) -> "LiveGraph":
        """The graph, of so many classes, with what joins it."""
        features = joining.features
        if isinstance(features, np.ndarray):
            parts = (features.ravel(), _NO_ROWS, _NO_ROWS)
        else:
            parts = (features.data, features.indices, features.indptr)
        return self._joined(
            classes, joining.new, joining.feature_rows, *parts, joining.label_rows, joining.labels, joining.edges
        )

    @together
    def _joined(
        self,
        classes: int,
        new: int,
        feature_rows: NDArray[np.int64],
        values: NDArray[np.float32] | NDArray[np.float64],
        columns: NDArray[np.integer],
        starts: NDArray[np.integer],
        label_rows: NDArray[np.int64],
        labels: NDArray[np.int64],
        edges: NDArray[np.int64],
    ) -> "LiveGraph":
        """The same from arrays: features are values alone, or values, columns and starts where they are CSR."""
        shape = (feature_rows.size, self.inputs.features.rows.num_features)
        dense = self.inputs.features.rows.dense
        features = values.reshape(shape) if dense else sp.csr_array((values, columns, starts), shape=shape)
        targets = np.concatenate([self.targets, np.full(new, NO_LABEL)])
        targets[label_rows] = labels
        propagator = self.propagator.with_edges(new, edges)
        known = one_hot(targets, targets != NO_LABEL, classes)
        inputs = self.inputs.with_rows(feature_rows, features, known, propagator)
        edited = self._edited(propagator, edges.ravel(), feature_rows, label_rows)
        return replace(self, inputs=inputs, propagator=propagator, targets=targets, edited=edited)

    def _edited(
        self,
        propagator: Propagator,
        rewired: NDArray[np.int64],
        feature_rows: NDArray[np.int64],
        label_rows: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """The mask (n,) of the live nodes named, those with another label only where labels are an input."""
        edited = np.zeros(propagator.nodes, dtype=np.bool_)
        edited[rewired] = edited[feature_rows] = True
        if self.inputs.read_labels:
            edited[label_rows] = True
        return edited & propagator.live

    @together
    def training_norm(self, W: Tensor, regularization: float, nodes: NDArray[np.int64]) -> float:
        """|sum_i h_i^T u_i|_F over those of `nodes` (m,) that are trained on, u_i their dual variables at W (p, C).

        It is what they add to H^T U, which W is at an optimum: how much of the weights their labels account for.
        """
        if not (self.targets[nodes] != NO_LABEL).any():
            return 0.0
        objective = self.objective_with(self.representation(), regularization)
        representation = objective.representation
        residual = objective.at(W).residual
        theirs = torch.from_numpy(np.isin(self.training_rows[representation.own], nodes)).to(residual)
        size = float(torch.linalg.norm(representation.transposed(residual * theirs[:, None])))
        return size / (regularization * objective.weighted_rows)

    @together
    def forget(self, nodes: NDArray[np.int64], feature_rows: NDArray[np.int64]) -> None:
        """Overwrites, in place, the rows of `nodes` (m,) and the features of `feature_rows` (l,); not those of edges.

        None of them may be of this graph; earlier graphs, which share the inputs' rows, must be gone.
        """
        self.inputs.features.rows.forget(np.concatenate([nodes, feature_rows]))
        if self.inputs.labels is not None:
            self.inputs.labels.rows.forget(nodes)

    @property
    def edges(self) -> int:
        """How many edges there are, each counted once."""
        return int(self.propagator.neighbours.sum()) // 2

    @property
    def training_rows(self) -> NDArray[np.int64]:
        """The live nodes that are trained on, (n_train,), ascending."""
        return np.flatnonzero(self.targets != NO_LABEL)

    @together
    def representation(self) -> Representation:
        """H of the live training nodes, through its factors."""
        rows = self.training_rows
        stops = [*np.searchsorted(rows, self.bounds).tolist(), rows.size]
        division = Division(tuple(stop - start for start, stop in itertools.pairwise([0, *stops])))
        return Representation(self.inputs, rows, self.workers, division)

    def objective(self, regularization: float) -> Objective:
        """F^u: the training objective over the live training nodes, on the live graph."""
        return self.objective_with(self.representation(), regularization)

    @together
    def objective_with(self, representation: Representation, regularization: float) -> Objective:
        """The same, with the products of `representation`."""
        own = self.training_rows[representation.own]
        labels = torch.from_numpy(self.targets[own]).to(self.propagator.device)
        return Objective(representation, self.loss, labels, regularization)

    def logits(self, state: ModelState) -> Tensor:
        """The logits of every node under `state`, (n, C), by sweeps on class columns instead of features."""
        return self.representation().logits_at_first(stacked(state))

    def probabilities(self, state: ModelState, logits: Tensor | None = None) -> NDArray[np.float64]:
        """Class probabilities under `state`, (n, C), zero for nodes that are not live.

        `logits` (n, C) are those of `state` where they are known.
        """
        probabilities = self.loss.probabilities(self.logits(state) if logits is None else logits).cpu().numpy()
        probabilities[~state.live] = 0.0
        return probabilities

    def probabilities_of_new(self, state: ModelState, joining: Joining) -> NDArray[np.float64]:
        """Class probabilities under `state`, (C,), of the one node that `joining` brings, in the graph with it."""
        joined = self.joined(joining, state.classes)
        node = np.array([joined.propagator.nodes - 1])
        row = image_rows(joined.inputs, node, joined.propagator.edges.adjacency, joined.propagator.live)
        logits = joined.logits(state)[node] if row is None else row @ stacked(state)
        return np.asarray(self.loss.probabilities(logits).cpu().numpy()[0])


def label_gram(graph: Graph, live: NDArray[np.bool_], rows: FeatureMatrix) -> tuple[Gram, NDArray[np.bool_]]:
    """The Gram factors of the label input `rows` (n, C), and the mask (n,) of its rows that count."""
    training = graph.train_mask & live
    # Counts of training nodes by class: n bounds them for good, and a class that has one is never lost in it.
    return factorise(rows, training, sigma_ref_squared=float(graph.nodes)), training
