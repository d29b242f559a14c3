"""The library's main interface: fit a linear graph neural network, forget data, bound its distance to retraining.

The method is Projector (Cong and Mahdavi, "Efficiently Forgetting What You Have Learned in Graph Representation
Learning via Projection", AISTATS 2023). A repair then brings the weights to those of retraining, within a proven bound.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from projector.asked import Arriving, Leaving, checked, live_rows, newcomers
from projector.device import torch_device
from projector.errors import TrainingError
from projector.forgetting.batch import InputRows, ModelState, Removal, project_batch
from projector.forgetting.certificate import Certificate
from projector.forgetting.joining import Joining
from projector.forgetting.live_graph import LiveGraph, label_gram
from projector.forgetting.projection import SpanState
from projector.forgetting.status import RepairProgress, RepairStatus
from projector.forgetting.training_rows import TrainingRows
from projector.forgetting.update import HeldModel, RepairPlan, Updated, update
from projector.graph.from_data import graph_of
from projector.graph.graph import Graph, validate
from projector.network.blocks import by_block, side_by_side
from projector.network.spec import ModelSpec, check_spec
from projector.training.fit import TrainingProgress
from projector.training.fitted import Fitted, fit_graph
from projector.training.pretrained import PretrainedWeights


@dataclass(frozen=True)
class Report:
    """Figures of an update."""

    #: Numbers removed, including replaced features and labels.
    nodes: int
    edges: int
    features: int
    labels: int
    #: Numbers added. Features and labels are those of existing nodes.
    nodes_joined: int
    edges_joined: int
    features_joined: int
    labels_joined: int
    #: Feature directions that only removed data supported, and those that only added data supports.
    directions_removed: int
    directions_gained: int
    #: How much weight training put on the deleted features: the norm of the row of W that a binary feature on exactly
    #: these nodes would have, summed over blocks (the paper's feature injection test). None for edges alone.
    injected_norm_before: float | None
    injected_norm_after: float | None
    #: How much of the weights came from removed labels whose nodes stay, |sum h_i^T u_i|_F; None without such labels.
    training_norm_before: float | None
    training_norm_after: float | None
    #: |Q^T W|_F along the removed directions Q, measured before anything joins; None if there are none.
    lost_direction_norm_before: float | None
    lost_direction_norm_after: float | None
    #: Upper bound on the distance to retraining on the remaining graph, before and after the repair, for columns scaled
    #: by `Model.exponents`; None for a loss with kinks.
    bound_before: Certificate | None
    bound_after: Certificate | None
    #: Outcome of the repair and its number of steps; None if there was none.
    repair: RepairStatus
    iterations: int | None
    #: |W_after - W_before|_F / |W_before|_F.
    weight_change: float
    seconds: float


@dataclass(frozen=True)
class SpanFigures:
    """The influence of a set of nodes on a model that still has them."""

    #: As in `Report`.
    injected_norm: float
    #: Number of feature directions that no other node supports, and |Q^T W|_F along them (None if there are none).
    directions: int
    lost_direction_norm: float | None
    #: x_i^T M+ x_i of each node, (m,) float64 in [0, 1]: 1 if the node alone supports a direction.
    leverages: NDArray[np.float64]


class Model:
    """A trained linear graph neural network on a graph. Immutable: `forget` and `update` return a new model.

    Nodes are the rows of the given graph, 0 to n - 1, before and after any deletion. New nodes follow.

    Forgotten data leaves the weights, the graph and every prediction. Its rows stay in memory, because the previous
    model shares them. To erase them too, as the service does, drop both models and fit again from what remains.
    """

    def __init__(self, held: HeldModel, exponents: NDArray[np.int64] | None) -> None:
        """Use `fit`. Column j of the features was multiplied by 2**exponents[j]; None if none was scaled."""
        self._held = held
        self._exponents = exponents

    def __deepcopy__(self, memo: dict[int, Any]) -> "Model":
        """Return the model itself, because it is immutable."""
        return self

    @property
    def live(self) -> NDArray[np.bool_]:
        """Mask of the nodes that have not been deleted, (n,)."""
        return self._held.state.live.copy()

    @property
    def weights(self) -> NDArray[np.float64]:
        """W of the feature blocks, (blocks, d, C) float64, for the features as given."""
        blocks = by_block(self._held.state.features.W, self._held.state.classes).cpu().numpy().copy()
        if self._exponents is not None:
            blocks *= np.exp2(self._exponents.astype(np.float64))[:, None]
        return np.asarray(blocks)

    @property
    def exponents(self) -> NDArray[np.int64] | None:
        """`fit` multiplied column j of the features by 2**exponents[j], (d,); None if none was scaled.

        The objective uses the scaled columns, also for retraining. So bounds apply to `weights` divided by these
        powers.
        """
        return None if self._exponents is None else self._exponents.copy()

    @property
    def certificate(self) -> Certificate | None:
        """Upper bound on the distance to the optimum of the live graph's objective: |W - W_u|_F <= bound.

        Both refer to columns scaled by 2**exponents. None for the plain hinge, which has kinks.
        """
        return self._held.certificate()

    def predict(self, nodes: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return class probabilities or real-valued targets of `nodes` (m,) or of all, (m, C) float64.

        Deleted nodes have 0 in the result for all. Raises GraphError for a deleted, unknown or repeated node.
        """
        probabilities = self._held.live_graph.probabilities(self._held.state)
        return probabilities if nodes is None else probabilities[live_rows(self._held, nodes)]

    def span(self, nodes: ArrayLike) -> SpanFigures:
        """Return the influence of `nodes` (m,) on the model, without forgetting them. Raises as `predict` does."""
        rows = live_rows(self._held, nodes)
        held, state = self._held, self._held.state
        found = project_batch(state, held.features, held.labels, [Removal(nodes=rows)])
        X = held.features.rows.dense_rows(rows[state.features.in_span[rows]])
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
        """Return the model without `nodes` (m,), `edges` (k, 2) and the features of the nodes `features` (l,).

        Also returns a report. Equals `update` without additions.
        """
        return self.update(
            remove_nodes=nodes, remove_edges=edges, remove_features=features, repair=repair, progress=progress
        )

    def update(
        self,
        *,
        remove_nodes: ArrayLike = (),
        remove_edges: ArrayLike = (),
        remove_features: ArrayLike = (),
        remove_labels: ArrayLike = (),
        add_nodes: Any = None,
        add_labels: ArrayLike | None = None,
        add_edges: ArrayLike = (),
        add_edge_weight: ArrayLike | None = None,
        set_features: Mapping[int, ArrayLike] | None = None,
        set_labels: Mapping[int, Any] | None = None,
        repair: bool = True,
        progress: Callable[[RepairProgress], None] | None = None,
    ) -> tuple["Model", Report]:
        """Return the model after removals and then additions, and a report.

        Removals: `remove_nodes` (m,) with all their data. `remove_edges` (k, 2), each row one edge in either direction.
        The features of the nodes `remove_features` (l,). The labels of the nodes `remove_labels` (r,), which stay in
        the graph but are no longer trained on.

        Additions: `add_nodes` (a, d), dense or scipy CSR, are the features of new nodes, which get the rows n, n + 1, …
        of the graph. `add_labels` (a,) are their classes, -1 for a node that is not trained on (the default). If the
        model has real-valued targets, they are float (a,) or (a, C), NaN for a node that is not trained on. `add_edges`
        (k, 2) link old and new nodes, each edge once, with the weights `add_edge_weight` (k,), by default 1. An edge
        that is also in `remove_edges` gets another weight. `set_features` and `set_labels` give nodes new features (d,)
        and a new class, or targets (C,), to train on; the old ones are removed first.

        Removals use the paper's projection. Then (unless `repair` is False) the repair goes to the minimum of the
        objective on the resulting graph: the weights of retraining, to a relative bound of 1e-8. `progress` receives
        its progress. Column scales and sigmas of adaptive diffusion stay as in `fit`.

        Raises GraphError for deleted, unknown or repeated items, for an edge that already exists, and for features or
        labels that do not fit the model. Raises NotFinite if numbers overflow. Raises TrainingError for `repair` with
        the plain hinge, where nothing bounds the distance to retraining, and for removing labels without repair.
        """
        began = time.perf_counter()
        leaving = Leaving(remove_nodes, remove_edges, remove_features, remove_labels)
        arriving = Arriving(add_nodes, add_labels, add_edges, add_edge_weight, set_features or {}, set_labels or {})
        removal, joining = checked(self._held, self._exponents, leaving, arriving)
        if repair and self._held.live_graph.loss.largest_curvature == 0:
            raise TrainingError("The plain hinge has kinks, so no repair can be certified.", "Use repair=False.")
        if removal.labels.size and not repair:
            raise TrainingError("Removing labels needs the repair.", "Use repair=True.")
        done = update(self._held, [removal], RepairPlan(progress=progress) if repair else None, joining)
        after = Model(self._after(done, removal), self._exponents)
        for span in done.state.spans:
            span.gram.settle()
        return after, _report(removal, joining, done, time.perf_counter() - began)

    def predict_new(
        self, features: Any, neighbours: Sequence[ArrayLike], *, edge_weight: Sequence[ArrayLike] | None = None
    ) -> NDArray[np.float64]:
        """Return what `predict` would return, (m, C) float64, for nodes outside the graph. Nothing changes.

        `features` (m, d) are dense or scipy CSR, and `neighbours` has a list of nodes per row, `edge_weight` a list of
        the links' weights (by default 1). Each prediction assumes that this node alone joined, without a label. Raises
        GraphError as `update` does.
        """
        held = self._held
        predicted = [
            held.live_graph.probabilities_of_new(held.state, each)
            for each in newcomers(held, self._exponents, features, neighbours, edge_weight)
        ]
        return np.array(predicted).reshape(-1, held.state.classes)

    def _after(self, done: Updated, removal: Removal) -> HeldModel:
        held, inputs = self._held, done.live_graph.inputs
        given = [held.features] if held.labels is None else [held.features, held.labels]
        coefficients = done.outcome.coefficients
        if coefficients is None:
            # Removing only features keeps the label, and vice versa.
            leaving = (removal.rows, np.concatenate([removal.nodes, removal.labels]))
            betas = [_without_rows(one.beta, rows) for one, rows in zip(given, leaving, strict=False)]
            if done.joined:
                nodes = done.live_graph.propagator.nodes
                betas = [rows.into(beta, nodes) for rows, beta in zip(done.joined, betas, strict=True)]
        else:
            betas = list(coefficients)
        features, *labels = [InputRows(one.rows, beta) for one, beta in zip(inputs, betas, strict=True)]
        return replace(
            held,
            state=done.state,
            features=features,
            labels=labels[0] if labels else None,
            live_graph=done.live_graph,
            training_rows=done.training_rows,
            preconditioner=None if done.repair is None else done.repair.committed(),
        )


def fit(
    data: Any,
    spec: ModelSpec | None = None,
    *,
    weights: ArrayLike | None = None,
    label_weights: ArrayLike | None = None,
    device: str = "cpu",
    progress: Callable[[TrainingProgress], None] | None = None,
) -> Model:
    """Train `spec` (default: `ModelSpec()`) on `data`, on `device`. On the CPU the same inputs give the same bits.

    `data` is a `torch_geometric.data.Data`, or any object with its attributes or keys: `edge_index` (2, E) with both
    directions of each edge, `x` (n, d), `y` (n,) with -1 for unlabelled nodes, and optionally `edge_weight` (E,) and
    `train_mask` (n,) bool (default: every node with a label). Only with 0 hops may `edge_index` be missing. A `Graph`
    from `from_arrays` works too.

    `weights` W (blocks, d, C), with `label_weights` under label reuse, are the starting point of training. The spec's
    `seed` and `tolerance` control training.

    Warns if the features are too large relative to lambda for any deletion to be proven, and suggests a divisor. Raises
    GraphError for data that cannot be trained on, TrainingError for a setting out of range or a failing solver,
    RankError if the features' Gram matrix cannot determine their rank, WeightsError for `weights` of another graph, and
    DeviceError if the device is missing or too small.
    """
    torch_device(device)
    spec = spec or ModelSpec()
    check_spec(spec)
    if spec.mlp_width:
        raise TrainingError("An MLP has to be trained on public nodes first.", "Give its outputs as the features.")
    known = data if isinstance(data, Graph) else graph_of(data, needs_edges=spec.uses_edges)
    validate(known)
    pretrained = None
    if weights is not None:
        labels = None if label_weights is None else np.asarray(label_weights, dtype=np.float64)
        pretrained = PretrainedWeights(np.asarray(weights, dtype=np.float64), labels)
    fitted = fit_graph(known, spec, pretrained=pretrained, device=device, progress=progress)
    if fitted.too_large is not None:
        warnings.warn(fitted.too_large, stacklevel=2)
    return Model(_held(fitted, device), fitted.exponents)


def _held(fitted: Fitted, device: str) -> HeldModel:
    known, trained = fitted.graph, fitted.trained
    everyone = np.ones(known.nodes, dtype=np.bool_)
    live_graph = LiveGraph.of(
        known, fitted.spec, trained.diffusion,
        temperature=fitted.temperature, live=everyone, featured=everyone, device=device,
    )  # fmt: skip
    features, labels = live_graph.inputs.features, live_graph.inputs.labels
    W = side_by_side(trained.weights)
    gram = fitted.gram.compact(features.rows, everyone)
    span = SpanState(W, W.clone(), torch.zeros_like(W), gram, everyone)
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


def _report(removal: Removal, joining: Joining | None, done: Updated, seconds: float) -> Report:
    projection, outcome, norms = done.projection, done.outcome, done.projection.norms[0]
    new = 0 if joining is None else joining.new
    first_new = done.live_graph.propagator.nodes - new
    return Report(
        nodes=removal.nodes.size,
        edges=len(removal.edges),
        features=removal.features.size,
        labels=removal.labels.size,
        nodes_joined=new,
        edges_joined=0 if joining is None else len(joining.edges),
        features_joined=0 if joining is None else joining.feature_rows.size - new,
        labels_joined=0 if joining is None else int((joining.label_rows < first_new).sum()),
        directions_removed=projection.directions_removed,
        directions_gained=projection.directions_gained,
        injected_norm_before=norms.injected_before,
        injected_norm_after=norms.injected_after,
        training_norm_before=norms.training_before,
        training_norm_after=norms.training_after,
        lost_direction_norm_before=projection.lost_direction_norm_before,
        lost_direction_norm_after=projection.lost_direction_norm_after,
        bound_before=outcome.before,
        bound_after=outcome.after,
        repair=outcome.status,
        iterations=outcome.iterations,
        weight_change=projection.weight_change,
        seconds=seconds,
    )
