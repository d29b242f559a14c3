"""The face of the library: fit a linear graph neural network, forget from it, know how far that is from retraining.

The method is Projector (Cong and Mahdavi, "Efficiently Forgetting What You Have Learned in Graph Representation
Learning via Projection", AISTATS 2023), with the weights then brought to those of retraining ("repair") and a proven
bound.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from projector.device import torch_device
from projector.errors import GraphError, TrainingError
from projector.forgetting.batch import InputRows, ModelState, Projection, Removal, project_batch
from projector.forgetting.certificate import Certificate
from projector.forgetting.forget import Forgotten, HeldModel, RepairPlan, forget
from projector.forgetting.live_graph import LiveGraph, label_gram
from projector.forgetting.projection import SpanState
from projector.forgetting.status import RepairProgress, RepairStatus
from projector.forgetting.training_rows import TrainingRows
from projector.graph.from_data import graph_of
from projector.graph.graph import Graph, some, validate
from projector.network.blocks import by_block, side_by_side
from projector.network.spec import ModelSpec, check_spec
from projector.training.fit import TrainingProgress
from projector.training.fitted import Fitted, fit_graph
from projector.training.pretrained import PretrainedWeights


@dataclass(frozen=True)
class Report:
    """What forgetting a set of nodes, edges and features did."""

    #: How many of each left.
    nodes: int
    edges: int
    features: int
    #: Directions of the features that only what was deleted supported.
    directions_removed: int
    #: How much weight training had put on the deleted features: the norm of the row of W that a binary feature on
    #: exactly these nodes would have, summed over blocks (the paper's feature injection test). None for edges alone.
    injected_norm_before: float | None
    injected_norm_after: float | None
    #: |Q^T W|_F along the removed directions Q; None where there are none.
    lost_direction_norm_before: float | None
    lost_direction_norm_after: float | None
    #: Distance to the weights of retraining on what remains, before and after the repair, of columns multiplied as
    #: `Model.exponents` says; None for a loss with kinks.
    bound_before: Certificate | None
    bound_after: Certificate | None
    #: What came of the repair, and its steps; None for those where there was none.
    repair: RepairStatus
    iterations: int | None
    #: |W_after - W_before|_F / |W_before|_F.
    weight_change: float
    seconds: float


@dataclass(frozen=True)
class SpanFigures:
    """What a set of nodes means to a model that still has them."""

    #: As in `Report`.
    injected_norm: float
    #: Directions of the features that nobody else supports, and |Q^T W|_F along them (None where there are none).
    directions: int
    lost_direction_norm: float | None
    #: x_i^T M+ x_i of each node, (m,) float64 in [0, 1]: how nearly it is alone in supporting a direction.
    leverages: NDArray[np.float64]


class Model:
    """A trained linear graph neural network on a graph; immutable, `forget` returns another.

    Nodes are the rows of the graph that was given, 0 to n - 1, before and after any deletion. What is forgotten leaves
    the weights, the graph and every prediction; its rows stay in memory, since the model before shares them. To have
    them gone, as the service does, drop both and fit again from what remains.
    """

    def __init__(self, held: HeldModel, graph: Graph, exponents: NDArray[np.int64] | None) -> None:
        """Use `fit`. Column j of the features was multiplied by 2**exponents[j]; None where none was."""
        self._held = held
        self._graph = graph
        self._exponents = exponents

    def __deepcopy__(self, memo: dict[int, Any]) -> "Model":
        """The model itself, because it is immutable."""
        return self

    @property
    def live(self) -> NDArray[np.bool_]:
        """Which nodes have not been deleted, (n,)."""
        return self._held.state.live.copy()

    @property
    def weights(self) -> NDArray[np.float64]:
        """W of the feature blocks, (blocks, d, C) float64, for the features as they were given."""
        blocks = by_block(self._held.state.features.W, self._held.state.classes).cpu().numpy().copy()
        if self._exponents is not None:
            blocks *= np.exp2(self._exponents.astype(np.float64))[:, None]
        return np.asarray(blocks)

    @property
    def exponents(self) -> NDArray[np.int64] | None:
        """Column j of the features was multiplied by 2**exponents[j] at `fit`, (d,); None where none was.

        The objective is that of the multiplied columns, also for retraining: bounds are of `weights` divided by these
        powers.
        """
        return None if self._exponents is None else self._exponents.copy()

    @property
    def certificate(self) -> Certificate | None:
        """How far the weights can be from the optimum of the live graph's objective: |W - W_u|_F <= bound.

        Both are of the columns multiplied by 2**exponents. None for the plain hinge, which has kinks.
        """
        return self._held.certificate()

    def predict(self, nodes: ArrayLike | None = None) -> NDArray[np.float64]:
        """Class probabilities, (m, C) float64, of `nodes` (m,), or of all (zero rows for deleted ones).

        The squared loss of real-valued targets predicts these themselves.

        Raises GraphError for a node that was deleted, or never was.
        """
        probabilities = self._held.live_graph.probabilities(self._held.state)
        return probabilities if nodes is None else probabilities[self._rows(nodes)]

    def span(self, nodes: ArrayLike) -> SpanFigures:
        """What `nodes` (m,) mean to the model, without forgetting them. Raises GraphError as `predict` does."""
        rows = self._rows(nodes)
        found = self._projected(Removal(nodes=rows))
        state = self._held.state
        X = self._held.features.rows.dense_rows(rows[state.features.in_span[rows]])
        leverages = np.zeros(rows.size)
        leverages[state.features.in_span[rows]] = ((X @ state.features.gram.M_pinv) * X).sum(dim=1).cpu().numpy()
        return SpanFigures(
            found.norms[0].injected_before or 0.0, found.directions_removed, found.lost_direction_norm_before, leverages
        )

    def forget(
        self,
        *,
        nodes: ArrayLike = (),
        edges: ArrayLike = (),
        features: ArrayLike = (),
        repair: bool = True,
        progress: Callable[[RepairProgress], None] | None = None,
    ) -> tuple["Model", Report]:
        """The model without `nodes` (m,), `edges` (k, 2) and the features of the nodes `features` (l,), and a report.

        Each row of `edges` is one edge, in either direction.

        The projection of the paper, then (unless `repair` is False) the minimum of the objective on the remaining
        graph: the weights that retraining would give, to a relative bound of 1e-8. `progress` is told how far it has
        come.

        Raises GraphError for what is not in the graph (any more) or named twice, NotFinite when numbers overflow, and
        TrainingError for `repair` with the
        plain hinge, for which nothing bounds the distance to retraining.
        """
        began = time.perf_counter()
        removal = self._removal(nodes, edges, features)
        if repair and self._held.live_graph.loss.largest_curvature == 0:
            raise TrainingError("The plain hinge has kinks, so no repair can be certified.", "Use repair=False.")
        done = forget(self._held, [removal], RepairPlan(progress=progress) if repair else None)
        return Model(self._after(done), self._graph, self._exponents), _report(
            removal, done, time.perf_counter() - began
        )

    def _after(self, done: Forgotten) -> HeldModel:
        held = self._held
        given = [held.features] if held.labels is None else [held.features, held.labels]
        coefficients = done.outcome.coefficients
        if coefficients is None:
            # Features alone take no label along.
            leaving = (np.concatenate([done.nodes, done.feature_rows]), done.nodes)
            betas = [_without_rows(one.beta, rows) for one, rows in zip(given, leaving, strict=False)]
        else:
            found = (coefficients.beta, coefficients.label_beta)
            betas = [torch.from_numpy(part).to(one.beta.device) for one, part in zip(given, found, strict=False)]
        features, *labels = [replace(one, beta=beta) for one, beta in zip(given, betas, strict=True)]
        return replace(
            held,
            state=done.state,
            features=features,
            labels=labels[0] if labels else None,
            live_graph=done.live_graph,
            training_rows=done.training_rows,
            preconditioner=None if done.repair is None else done.repair.committed(),
        )

    def _projected(self, removal: Removal) -> Projection:
        return project_batch(self._held.state, self._held.features, self._held.labels, [removal])

    def _removal(self, nodes: ArrayLike, edges: ArrayLike, features: ArrayLike) -> Removal:
        node_rows, feature_rows = self._rows(nodes), self._rows(features)
        if np.intersect1d(node_rows, feature_rows).size:
            raise GraphError("A node is named whole and for its features.", "Name it once.")
        spent = feature_rows[~self._held.state.features.in_span[feature_rows]]
        if spent.size:
            raise GraphError(f"The features of {some(spent)} have been forgotten.", "Leave them out.")
        pairs = np.asarray(edges)
        if pairs.size and (pairs.dtype.kind not in "iu" or pairs.ndim != 2 or pairs.shape[1] != 2):
            raise GraphError(
                f"Edges are {pairs.dtype} of shape {pairs.shape}.", "Give pairs of row numbers, (k, 2): an edge a row."
            )
        pairs = pairs.astype(np.int64).reshape(-1, 2)
        if pairs.size and (pairs.min() < 0 or pairs.max() >= self._graph.nodes):
            raise GraphError(
                "An edge names a row that the graph does not have.", f"Rows are 0 to {self._graph.nodes - 1}."
            )
        unknown = ~self._held.live_graph.propagator.edges.contain(pairs)
        if unknown.any():
            raise GraphError(f"There is no edge {some(map(tuple, pairs[unknown].tolist()))}.", "Leave it out.")
        if np.unique(np.sort(pairs, axis=1), axis=0).shape != pairs.shape:
            raise GraphError("An edge is named twice.", "Name each once, in one direction.")
        if np.isin(pairs, node_rows).any():
            raise GraphError("An edge of a node that is deleted is named.", "Leave it out: it goes with the node.")
        if not node_rows.size + feature_rows.size + pairs.size:
            raise GraphError("Nothing is named to be forgotten.", "Give nodes, edges or features.")
        return Removal(nodes=node_rows, features=feature_rows, edges=pairs)

    def _rows(self, nodes: ArrayLike) -> NDArray[np.int64]:
        rows = np.atleast_1d(np.asarray(nodes))
        if rows.size == 0:
            return np.empty(0, dtype=np.int64)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise GraphError(
                f"Nodes are {rows.dtype} of shape {rows.shape}.", "Give row numbers as a list of integers."
            )
        rows = rows.astype(np.int64)
        missing = (rows < 0) | (rows >= self._graph.nodes)
        missing[~missing] = ~self._held.state.live[rows[~missing]]
        if missing.any():
            raise GraphError(f"There is no node {some(rows[missing])} (any more).", "Leave it out.")
        if np.unique(rows).size != rows.size:
            raise GraphError("A node is named twice.", "Name each once.")
        return rows


def fit(
    data: Any,
    spec: ModelSpec | None = None,
    *,
    weights: ArrayLike | None = None,
    label_weights: ArrayLike | None = None,
    device: str = "cpu",
    progress: Callable[[TrainingProgress], None] | None = None,
) -> Model:
    """Trains `spec` (default: `ModelSpec()`) on `data`, on `device`; on the CPU the same inputs give the same bits.

    `data` is a `torch_geometric.data.Data`, or anything with its attributes or keys: `edge_index` (2, E) with both
    directions of each edge, `x` (n, d), `y` (n,) with -1 where there is no label, and `train_mask` (n,) bool (default:
    every node with a label); or a `Graph`, from `from_arrays`.

    With `weights` W (blocks, d, C), and `label_weights` where there is label reuse, training goes on from there. The
    spec's `seed` and `tolerance` say how it is trained.

    Warns if the features are too large relative to lambda for any deletion to be proven, and suggests a divisor.
    Raises GraphError for data that cannot be trained on, TrainingError for a setting that is out of range or a solver
    that fails, RankError when the features' Gram matrix cannot tell their rank, WeightsError for `weights` that belong
    to another graph, and DeviceError when the device is not there or too small.
    """
    torch_device(device)
    spec = spec or ModelSpec()
    check_spec(spec)
    if spec.mlp_width:
        raise TrainingError("An MLP has to be trained on public nodes first.", "Give its outputs as the features.")
    known = data if isinstance(data, Graph) else graph_of(data)
    validate(known)
    pretrained = None
    if weights is not None:
        labels = None if label_weights is None else np.asarray(label_weights, dtype=np.float64)
        pretrained = PretrainedWeights(np.asarray(weights, dtype=np.float64), labels)
    fitted = fit_graph(known, spec, pretrained=pretrained, device=device, progress=progress)
    if fitted.too_large is not None:
        warnings.warn(fitted.too_large, stacklevel=2)
    return Model(_held(fitted, device), fitted.graph, fitted.exponents)


def _held(fitted: Fitted, device: str) -> HeldModel:
    known, trained = fitted.graph, fitted.trained
    everyone = np.ones(known.nodes, dtype=np.bool_)
    live_graph = LiveGraph.of(
        known, fitted.spec, trained.diffusion,
        temperature=fitted.temperature, live=everyone, featured=everyone, device=device,
    )  # fmt: skip
    features, labels = live_graph.inputs.features, live_graph.inputs.labels
    W = side_by_side(trained.weights)
    span = SpanState(W, W.clone(), torch.zeros_like(W), fitted.gram, everyone)
    state = ModelState(0, span, None, everyone, known.num_classes)
    rows = None
    if labels is not None:
        V = side_by_side(trained.label_weights)
        gram, training = label_gram(known, everyone, labels.rows)
        state = replace(state, labels=SpanState(V, V.clone(), torch.zeros_like(V), gram, training))
        rows = InputRows(labels.rows, fitted.label_beta)
    given = InputRows(features.rows, fitted.beta)
    return HeldModel(state, given, rows, live_graph, fitted.spec.regularization, TrainingRows.of(live_graph))


def _without_rows(beta: Tensor, rows: NDArray[np.int64]) -> Tensor:
    return beta.index_fill(1, torch.from_numpy(rows).to(beta.device), 0.0)


def _report(removal: Removal, done: Forgotten, seconds: float) -> Report:
    projection, outcome = done.projection, done.outcome
    return Report(
        nodes=removal.nodes.size,
        edges=len(removal.edges),
        features=removal.features.size,
        directions_removed=projection.directions_removed,
        injected_norm_before=projection.norms[0].injected_before,
        injected_norm_after=projection.norms[0].injected_after,
        lost_direction_norm_before=projection.lost_direction_norm_before,
        lost_direction_norm_after=projection.lost_direction_norm_after,
        bound_before=outcome.before,
        bound_after=outcome.after,
        repair=outcome.status,
        iterations=outcome.iterations,
        weight_change=projection.weight_change,
        seconds=seconds,
    )
