"""The graph of the live nodes and predictions on it."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.device import on_host
from projector.forgetting.batch import ModelState
from projector.forgetting.gram import Gram, factorise
from projector.forgetting.held_out import HeldOut
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
from projector.solvers.kernel import takes_kernel
from projector.solvers.normal_equations import takes_normal_equations
from projector.solvers.objective import Objective
from projector.solvers.preconditioners import takes_whole

#: Computing H costs about d / (2 C) products through its factors, and a repair by a factor of the whole Hessian takes
#: 20 to 50 products: H pays off up to this many times C features. [100,000 nodes, d = 32, C = 8, 64 deleted: 0.43 s
#: with H, 3.4 s without.]
_FEATURES_PER_CLASS = 16
_NO_ROWS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class LiveGraph:
    """Propagation over the live nodes. Removals and additions return a new graph; only `forget` overwrites this one."""

    #: The inputs' rows as last stored, and their operators over the live nodes.
    inputs: Inputs
    propagator: Propagator
    loss: Loss
    #: Classes by row, (n,) int64: `NO_LABEL` except for training nodes. Read only.
    targets: NDArray[np.int64]
    #: Whether products use H itself, once computed, for its training rows.
    keeps_dense: bool
    #: Whether repairs use a factor of the whole Hessian and need few products.
    factorises: bool
    workers: Workers = ALONE
    #: First node of each worker's training rows, except the first worker's. They stay fixed, so new nodes go to the
    #: last worker.
    bounds: tuple[int, ...] = ()
    #: C.
    classes: int = 0
    #: Real-valued targets by row, (n, C) float64, with class 0 for their nodes; None for classes.
    values: NDArray[np.float64] | None = None
    #: Whether repairs of the squared loss use its normal equations.
    keeps_equations: bool = False
    #: Whether its kernel preconditions them instead, with fewer training nodes than columns of H.
    keeps_kernel: bool = False
    #: The `validation` and the `test` nodes that are left.
    held_out: Mapping[str, HeldOut] = field(default_factory=dict)
    #: Whether the graph was given with weights of edges.
    weighted: bool = False
    #: Mask (n,) of the nodes whose neighbours, features or label differ from the graph this one was made from.
    edited: NDArray[np.bool_] | None = None

    @classmethod
    def of(
        cls,
        graph: Graph,
        spec: ModelSpec,
        diffusion: Diffusion | None,
        *,
        temperature: float | None = None,
        live: NDArray[np.bool_],
        featured: NDArray[np.bool_],
        device: torch.device | str,
        count: Callable[[int], None] | None = None,
    ) -> "LiveGraph":
        """Build from the nodes `live` (n,) of `graph`, of which `featured` (n,) still have their features, on `device`.

        `temperature` is the one training fitted for the squared loss; `count` is as in `Propagator.build`.
        """
        propagator = Propagator.build(
            graph.adjacency, spec.propagation, spec.self_loops, live=live, device=device, count=count
        )
        training = graph.train_mask & live
        labels = one_hot(graph.labels, training, graph.num_classes)
        rows = FeatureMatrix(graph.features, device)
        inputs = inputs_of(spec, rows, labels, propagator, diffusion, featured)
        loss = loss_of(
            spec.loss,
            real_valued=graph.values is not None, temperature=temperature, class_weights=spec.class_weights,
        )  # fmt: skip
        targets = np.where(training, graph.labels, NO_LABEL)
        representation = Representation(inputs, np.flatnonzero(training))
        whole = takes_whole(representation, graph.num_classes, loss)
        shape = (representation.rows, representation.columns)
        equations = loss.quadratic and takes_normal_equations(*shape)
        kernel = loss.quadratic and takes_kernel(*shape)
        sizes = Sizes.of(graph)
        # Repair always uses Newton's method. Recomputing H must pay for itself in saved products.
        cheap = not whole or sizes.width(spec) <= _FEATURES_PER_CLASS * sizes.classes
        dense = cheap and keeps_dense(replace(spec, solver=SolverKind.NEWTON), sizes)
        values = None if graph.values is None else np.where(training[:, None], graph.values, 0.0)
        masks = {"validation": graph.val_mask & live, "test": graph.test_mask & live}
        held_out = {name: HeldOut.of(graph, mask) for name, mask in masks.items()}
        return cls(
            inputs, propagator, loss, targets, dense or equations, whole,
            classes=graph.num_classes, values=values, keeps_equations=equations,
            keeps_kernel=kernel, held_out=held_out, weighted=graph.weighted,
        )  # fmt: skip

    def shared_by(self, workers: Workers) -> "LiveGraph":
        """Return the graph with training rows divided among `workers`, each of which has built this graph."""
        rows = self.training_rows
        begins = [part.start for part in Division.evenly(rows.size, workers.count).parts[1:]]
        bounds = tuple(int(rows[begin]) if begin < rows.size else self.propagator.nodes for begin in begins)
        # Workers do not multiply their rows with each other's.
        alone = self.keeps_kernel and workers.count == 1
        inputs, propagator = self.inputs.divided(self.propagator, workers)
        shared = replace(self, inputs=inputs, propagator=propagator, workers=workers, bounds=bounds, keeps_kernel=alone)
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
        """Return the graph without `nodes` (m,), `edges` (k, 2), and the features and labels of other nodes.

        Those are `feature_rows` (l,) and `label_rows` (r,). A removed node loses its edges, degree, label and
        prediction. A node without its label is not trained on, and its label is not an input.
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
        held_out = {name: each.without(nodes, label_rows) for name, each in self.held_out.items()}
        return replace(self, inputs=inputs, propagator=propagator, targets=targets, edited=edited, held_out=held_out)

    def joined(self, joining: Joining) -> "LiveGraph":
        """Return the graph with `joining` added."""
        features = joining.features
        if isinstance(features, np.ndarray):
            parts = (features.ravel(), _NO_ROWS, _NO_ROWS)
        else:
            parts = (features.data, features.indices, features.indptr)
        weights = np.ones(len(joining.edges)) if joining.edge_weight is None else joining.edge_weight
        return self._joined(
            joining.new, joining.feature_rows, *parts, joining.label_rows, joining.labels, joining.edges, weights
        )

    @together
    def _joined(
        self,
        new: int,
        feature_rows: NDArray[np.int64],
        entries: NDArray[np.float32] | NDArray[np.float64],
        columns: NDArray[np.integer],
        starts: NDArray[np.integer],
        label_rows: NDArray[np.int64],
        labels: NDArray[np.int64] | NDArray[np.float64],
        edges: NDArray[np.int64],
        edge_weight: NDArray[np.float64],
    ) -> "LiveGraph":
        """Return the same from arrays: dense features are one array; CSR features are entries, columns and starts."""
        shape = (feature_rows.size, self.inputs.features.rows.num_features)
        dense = self.inputs.features.rows.dense
        features = entries.reshape(shape) if dense else sp.csr_array((entries, columns, starts), shape=shape)
        targets, values = np.concatenate([self.targets, np.full(new, NO_LABEL)]), self.values
        if values is None:
            targets[label_rows] = labels
        else:
            values = np.concatenate([values, np.zeros((new, self.classes))])
            targets[label_rows], values[label_rows] = 0, labels.reshape(-1, self.classes)
        propagator = self.propagator.with_edges(new, edges, edge_weight)
        known = one_hot(targets, targets != NO_LABEL, self.classes)
        inputs = self.inputs.with_rows(feature_rows, features, known, propagator)
        edited = self._edited(propagator, edges.ravel(), feature_rows, label_rows)
        held_out = {name: each.without(label_rows) for name, each in self.held_out.items()}
        grown = replace(
            self, inputs=inputs, propagator=propagator, targets=targets, values=values, edited=edited,
            held_out=held_out,
        )  # fmt: skip
        return grown._without_large_kernel() if self.keeps_kernel else grown

    def _without_large_kernel(self) -> "LiveGraph":
        """Switch to normal equations once there are as many training nodes as columns of H."""
        rows, columns = self.training_rows.size, self.representation().columns
        if takes_kernel(max(rows, 1), columns):
            return self
        equations = takes_normal_equations(rows, columns)
        return replace(self, keeps_kernel=False, keeps_equations=equations, keeps_dense=self.keeps_dense or equations)

    def _edited(
        self,
        propagator: Propagator,
        rewired: NDArray[np.int64],
        feature_rows: NDArray[np.int64],
        label_rows: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Return the mask (n,) of the named live nodes; label changes count only if labels are an input."""
        edited = np.zeros(propagator.nodes, dtype=np.bool_)
        edited[rewired] = edited[feature_rows] = True
        if self.inputs.read_labels:
            edited[label_rows] = True
        return edited & propagator.live

    @together
    def training_norm(self, W: Tensor, regularization: float, nodes: NDArray[np.int64]) -> float:
        """Return |sum_i h_i^T u_i|_F over the training nodes in `nodes` (m,), u_i their dual variables at W (p, C).

        At an optimum W = H^T U, and this is their contribution: how much of the weights their labels account for.
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
        """Overwrite in place the rows of `nodes` (m,) and the features of `feature_rows` (l,), but no edges.

        None of them may belong to this graph. Earlier graphs, which share the inputs' rows, must be gone.
        """
        self.inputs.features.rows.forget(np.concatenate([nodes, feature_rows]))
        if self.values is not None:
            self.values[nodes] = 0.0
        if self.inputs.labels is not None:
            self.inputs.labels.rows.forget(nodes)

    @property
    def uses_edges(self) -> bool:
        """Whether the representation propagates anything over edges."""
        return any(each.operators.block_hops[-1] for each in self.inputs)

    @property
    def edges(self) -> int:
        """Number of edges, each counted once."""
        return int(self.propagator.neighbours.sum()) // 2

    @property
    def training_rows(self) -> NDArray[np.int64]:
        """The live training nodes, (n_train,), ascending."""
        return np.flatnonzero(self.targets != NO_LABEL)

    @together
    def representation(self) -> Representation:
        """Return H of the live training nodes, through its factors."""
        rows = self.training_rows
        stops = [*np.searchsorted(rows, self.bounds).tolist(), rows.size]
        division = Division(tuple(stop - start for start, stop in itertools.pairwise([0, *stops])))
        return Representation(self.inputs, rows, self.workers, division)

    def objective(self, regularization: float) -> Objective:
        """Return F^u, the training objective over the live training nodes on the live graph."""
        return self.objective_with(self.representation(), regularization)

    @together
    def objective_with(self, representation: Representation, regularization: float) -> Objective:
        """Return the same objective with the products of `representation`."""
        labels = self.labels_of(self.training_rows[representation.own])
        return Objective(representation, self.loss, labels, regularization)

    def labels_of(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the training targets of `rows` (m,): classes (m,) int64, or real-valued targets (m, C) float64."""
        given = self.targets if self.values is None else self.values
        return torch.from_numpy(given[rows]).to(self.propagator.device)

    def logits(self, state: ModelState) -> Tensor:
        """Return the logits of every node under `state`, (n, C), by sweeps over class columns instead of features."""
        return self.representation().logits_at_first(stacked(state))

    def probabilities(self, state: ModelState, logits: Tensor | None = None) -> NDArray[np.float64]:
        """Return class probabilities under `state`, (n, C), zero for nodes that are not live.

        `logits` (n, C) are those of `state`, if already known.
        """
        probabilities = on_host(self.loss.probabilities(self.logits(state) if logits is None else logits)).numpy()
        probabilities[~state.live] = 0.0
        return probabilities

    def probabilities_of_new(self, state: ModelState, joining: Joining) -> NDArray[np.float64]:
        """Return the prediction under `state`, (C,), for the single node that `joining` adds, in the graph with it.

        Only nodes around it are read, all by this process.
        """
        ends = joining.edges[:, 0]
        rows = _within(self.propagator, ends, max(each.operators.block_hops[-1] for each in self.inputs) - 1)
        edges = np.column_stack([np.searchsorted(rows, ends), np.full(ends.size, rows.size)])
        node = np.array([rows.size])
        joined = self._part(rows).joined(replace(joining, feature_rows=node, edges=edges))
        row = image_rows(joined.inputs, node, joined.propagator.edges.adjacency, joined.propagator.live)
        logits = joined.logits(state)[node] if row is None else row @ stacked(state)
        return np.asarray(self.loss.probabilities(logits).cpu().numpy()[0])

    def _part(self, rows: NDArray[np.int64]) -> "LiveGraph":
        """Return the graph of the nodes `rows` (m,), ascending, alone; with their degrees in this one."""
        propagator, targets = self.propagator.restricted(rows), self.targets[rows]
        labels = one_hot(targets, targets != NO_LABEL, self.classes)
        return LiveGraph(
            self.inputs.part(rows, labels, propagator), propagator, self.loss, targets, keeps_dense=False,
            factorises=False, classes=self.classes, values=None if self.values is None else self.values[rows],
        )  # fmt: skip


def label_gram(graph: Graph, live: NDArray[np.bool_], rows: FeatureMatrix) -> tuple[Gram, NDArray[np.bool_]]:
    """Return the Gram factors of the label input `rows` (n, C), and the mask (n,) of the rows in its span."""
    training = graph.train_mask & live
    # M counts training nodes by class: n bounds it for good, and a class with one node is never lost.
    return factorise(rows, training, sigma_ref_squared=float(graph.nodes)), training


def _within(propagator: Propagator, rows: NDArray[np.int64], hops: int) -> NDArray[np.int64]:
    """Return the live nodes within `hops` of `rows` (m,), themselves included, ascending."""
    found = edge = np.unique(rows)
    for _ in range(hops):
        edge = np.setdiff1d(propagator.neighbours_of(edge), found)
        edge = edge[propagator.live[edge]]
        found = np.union1d(found, edge)
    return found
