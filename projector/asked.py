"""Check an update request against the model and return the rows and arrays to apply."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from projector.errors import GraphError
from projector.forgetting.batch import Removal
from projector.forgetting.growth import LONGEST_ROW
from projector.forgetting.joining import Joining
from projector.forgetting.update import HeldModel
from projector.graph.features import FeatureMatrix
from projector.graph.graph import LARGEST_WEIGHT, NO_LABEL, SMALLEST_WEIGHT, Features, some
from projector.training.scaling import rescale


@dataclass(frozen=True, eq=False)
class Leaving:
    """Removals, as passed to `Model.update`."""

    nodes: ArrayLike = ()
    edges: ArrayLike = ()
    features: ArrayLike = ()
    labels: ArrayLike = ()


@dataclass(frozen=True, eq=False)
class Arriving:
    """Additions and replacements, as passed to `Model.update`."""

    #: Features of new nodes, (a, d), dense or scipy CSR; None for no new node. Then their labels: classes, (a,), -1 for
    #: none, or real-valued targets, (a,) or (a, C), NaN for none.
    nodes: Any = None
    node_labels: ArrayLike | None = None
    edges: ArrayLike = ()
    #: The edges' weights, (k,); None if all are 1.
    edge_weight: ArrayLike | None = None
    #: Replacements by node: features (d,), and classes or real-valued targets (C,).
    features: Mapping[int, ArrayLike] = field(default_factory=dict)
    labels: Mapping[int, Any] = field(default_factory=dict)


def checked(
    model: HeldModel, exponents: NDArray[np.int64] | None, leaving: Leaving, arriving: Arriving
) -> tuple[Removal, Joining | None]:
    """Return what to remove, including features and labels to be replaced, and what to add, or None for no additions.

    Training multiplied column j of the model's features by 2**exponents[j]. Raises GraphError.
    """
    nodes, features, labels = (live_rows(model, rows) for rows in (leaving.nodes, leaving.features, leaving.labels))
    replaced, relabelled = (live_rows(model, [*given]) for given in (arriving.features, arriving.labels))
    _check_named_once(nodes, features, labels, replaced, relabelled)
    in_span, trained = model.state.features.in_span, model.live_graph.targets != NO_LABEL
    if (spent := features[~in_span[features]]).size:
        raise GraphError(f"The features of {some(spent)} have been forgotten.", "Leave them out.")
    if (spent := labels[~trained[labels]]).size:
        raise GraphError(f"The labels of {some(spent)} are not trained on.", "Leave them out.")
    removal = Removal(
        nodes=nodes,
        edges=_leaving_edges(model, leaving.edges, nodes),
        features=np.concatenate([features, replaced[in_span[replaced]]]),
        labels=np.concatenate([labels, relabelled[trained[relabelled]]]),
    )
    joining = joining_of(model, exponents, arriving, removal)
    if joining is None and not any(part.size for part in vars(removal).values()):
        raise GraphError("The update is empty.", "Give nodes, edges, features or labels.")
    return removal, joining


def newcomers(
    model: HeldModel,
    exponents: NDArray[np.int64] | None,
    features: Any,
    neighbours: Sequence[ArrayLike],
    edge_weight: Sequence[ArrayLike] | None = None,
) -> list[Joining]:
    """Return one `Joining` per row of `features` (m, d): a new node linked to its `neighbours`. Raises GraphError.

    `edge_weight` has the weights of each row's links; None if all are 1.
    """
    rows, _ = _features(model, exponents, Arriving(nodes=features), [])
    before, nothing = model.live_graph.propagator.nodes, np.empty(0, dtype=np.int64)
    if len(neighbours) != rows.shape[0]:
        raise GraphError(
            f"{len(neighbours)} lists of neighbours are given for {rows.shape[0]} rows of features.", "Give one a row."
        )
    ends = [live_rows(model, each) for each in neighbours]
    if any(each.size for each in ends) and not model.live_graph.uses_edges:
        raise GraphError("The model has no edges: it was fitted with 0 hops.", "Give no neighbours.")
    edges = [np.column_stack([each, np.full(each.size, before)]) for each in ends]
    if edge_weight is not None and len(edge_weight) != len(ends):
        raise GraphError(
            f"{len(edge_weight)} lists of weights are given for {len(ends)} rows of features.", "Give one a row."
        )
    weights = [None if edge_weight is None else _weights(edge_weight[row], edges[row]) for row in range(len(ends))]
    node = np.array([before])
    return [Joining(1, node, rows[[row]], nothing, nothing, edges[row], weights[row]) for row in range(len(ends))]


def live_rows(model: HeldModel, nodes: ArrayLike) -> NDArray[np.int64]:
    """Return `nodes` (m,) as rows. Raises GraphError for a deleted, unknown or repeated node."""
    rows = np.atleast_1d(_read("nodes", nodes))
    if rows.size == 0:
        return np.empty(0, dtype=np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise GraphError(f"Nodes are {rows.dtype} of shape {rows.shape}.", "Give row numbers as a list of integers.")
    live = model.state.live
    rows = rows.astype(np.int64)
    missing = (rows < 0) | (rows >= live.size)
    missing[~missing] = ~live[rows[~missing]]
    if missing.any():
        raise GraphError(f"There is no node {some(rows[missing])} (any more).", "Leave it out.")
    if np.unique(rows).size != rows.size:
        raise GraphError("A node is named twice.", "Name each once.")
    return rows


def _check_named_once(
    nodes: NDArray[np.int64],
    features: NDArray[np.int64],
    labels: NDArray[np.int64],
    replaced: NDArray[np.int64],
    relabelled: NDArray[np.int64],
) -> None:
    if np.isin(features, nodes).any():
        raise GraphError("A node is in both remove_nodes and remove_features.", "Name it in one of them.")
    if np.isin(labels, nodes).any():
        raise GraphError("A node is in both remove_nodes and remove_labels.", "Name it in one of them.")
    if np.isin(np.concatenate([replaced, relabelled]), nodes).any():
        raise GraphError("A removed node cannot get features or a label.", "Omit one of the two.")
    if np.isin(replaced, features).any() or np.isin(relabelled, labels).any():
        raise GraphError(
            "A node has its features or label both removed and replaced.",
            "Only give the new ones: they replace the old.",
        )


def _pairs(model: HeldModel, edges: ArrayLike, nodes: int) -> NDArray[np.int64]:
    """Return `edges` as distinct (k, 2) pairs of rows below `nodes`."""
    pairs = _read("edges", edges)
    if pairs.size and not model.live_graph.uses_edges:
        raise GraphError("The model has no edges: it was fitted with 0 hops.", "Leave the edges out.")
    if pairs.size and (pairs.dtype.kind not in "iu" or pairs.ndim != 2 or pairs.shape[1] != 2):
        raise GraphError(
            f"Edges are {pairs.dtype} of shape {pairs.shape}.", "Give pairs of row numbers, (k, 2): one edge per row."
        )
    pairs = pairs.astype(np.int64).reshape(-1, 2)
    if pairs.size and (pairs.min() < 0 or pairs.max() >= nodes):
        raise GraphError("An edge names a row that the graph does not have.", f"Rows are 0 to {nodes - 1}.")
    if np.unique(np.sort(pairs, axis=1), axis=0).shape != pairs.shape:
        raise GraphError("An edge is named twice.", "Name each once, in one direction.")
    return np.asarray(pairs)


def _leaving_edges(model: HeldModel, edges: ArrayLike, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    propagator = model.live_graph.propagator
    pairs = _pairs(model, edges, propagator.nodes)
    unknown = ~propagator.edges.contain(pairs)
    if unknown.any():
        raise GraphError(f"There is no edge {some(map(tuple, pairs[unknown].tolist()))}.", "Leave it out.")
    if np.isin(pairs, nodes).any():
        raise GraphError("One of the edges belongs to a node that is deleted.", "Leave it out: it goes with the node.")
    return pairs


def joining_of(
    model: HeldModel, exponents: NDArray[np.int64] | None, arriving: Arriving, removal: Removal
) -> Joining | None:
    """Return what joins once `removal` has left, or None for nothing.

    Rows of live nodes are not checked. Column j of the model's features was multiplied by 2**exponents[j]. Raises
    GraphError for edges, features or labels that do not fit.
    """
    before = model.live_graph.propagator.nodes
    replaced = np.array(sorted(arriving.features), dtype=np.int64)
    features, names = _features(model, exponents, arriving, replaced.tolist())
    new = features.shape[0] - replaced.size
    edges = _joining_edges(model, arriving.edges, removal, new)
    label_rows, labels = (_labels if model.live_graph.values is None else _targets)(model, arriving, new)
    if not (names or edges.size or label_rows.size):
        return None
    rows = np.concatenate([replaced, np.arange(before, before + new)])
    return Joining(new, rows, features, label_rows, labels, edges, _weights(arriving.edge_weight, edges))


def _features(
    model: HeldModel, exponents: NDArray[np.int64] | None, arriving: Arriving, replaced: list[int]
) -> tuple[Features, list[str]]:
    """Return features of `replaced` and new nodes in the model's layout and dtype, with a name for each row."""
    stored = model.features.rows
    rows = [_matrix(f"The features of node {row}", arriving.features[row], stored, is_row=True) for row in replaced]
    given = [] if arriving.nodes is None else [_matrix("add_nodes", arriving.nodes, stored, is_row=False)]
    new = given[0].shape[0] if given else 0
    names = [*(f"node {row}" for row in replaced), *(f"row {row} of add_nodes" for row in range(new))]
    if not names:
        empty = np.empty((0, stored.num_features), dtype=stored.dtype)
        return (empty if stored.dense else sp.csr_array(empty)), names
    parts = [*rows, *given]
    exact: Features = np.concatenate(parts) if stored.dense else sp.vstack(parts, format="csr")
    features = _scaled(exact, exponents, stored.dtype, names)
    longest = LONGEST_ROW * model.state.features.gram.sigma_ref_squared**0.5
    lengths = _lengths(features)
    if longest and (long := np.flatnonzero(lengths > longest)).size:
        raise GraphError(
            f"The features of {some(names[row] for row in long)} are more than {LONGEST_ROW:g} times as long as those "
            "of all nodes that the model was trained on together, and would hide what others support.",
            "Check their unit, or fit again with them.",
        )
    return features, names


def _matrix(name: str, given: Any, stored: FeatureMatrix, *, is_row: bool) -> NDArray[np.float64] | sp.csr_array:
    """Return `given` as float64 (m, d), in CSR if the model's features are sparse. `is_row` accepts one row only."""
    matrix = _read(name, given, sp.csr_array if sp.issparse(given) else np.asarray)
    if is_row and matrix.ndim == 1:
        matrix = matrix[None, :]
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf" or matrix.shape[1] != stored.num_features:
        raise GraphError(
            f"{name} are {matrix.dtype} of shape {matrix.shape}."
            if is_row
            else f"{name} is {matrix.dtype} of shape {matrix.shape}.",
            f"Give numbers, {stored.num_features} columns as the model has.",
        )
    if is_row and matrix.shape[0] != 1:
        raise GraphError(f"{name} have shape {matrix.shape}.", "Give one row.")
    wide = matrix.astype(np.float64)
    if stored.dense:
        return wide if isinstance(wide, np.ndarray) else wide.toarray()
    wide = sp.csr_array(wide)
    # Repeated entries add up, as elsewhere.
    wide.sum_duplicates()
    return wide


def _read(name: str, given: Any, convert: Callable[[Any], Any] = np.asarray) -> Any:
    """Return `given` converted by `convert`, by default to an array."""
    try:
        return convert(given)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(". ")
        raise GraphError(f"{name} cannot be read as an array: {reason}.", "Give a numpy array.") from error


def _scaled(exact: Features, exponents: NDArray[np.int64] | None, dtype: np.dtype[Any], names: list[str]) -> Features:
    """Return `exact` rounded to `dtype`, with columns multiplied by 2**exponents.

    Scaling is exact unless it overflows or underflows. Raises GraphError if it does.
    """
    # The checks below catch overflow.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded: Features = exact.astype(dtype)
        scaled = rounded if exponents is None else rescale(rounded, exponents)
        wrong = ~_each_row(scaled, np.isfinite)
        if exponents is not None:
            wrong |= ~_each_row(rescale(scaled, -exponents) - rounded, lambda values: values == 0)
    if wrong.any():
        raise GraphError(
            f"The features of {some(names[row] for row in np.flatnonzero(wrong))} are not finite, or leave the range "
            f"of {dtype} with the column scales of the model.",
            "Give finite numbers of about the size that the model's features have.",
        )
    return scaled


def _each_row(features: Features, holds: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Return whether `holds` is true of every stored value of a row, (m,)."""
    if isinstance(features, np.ndarray):
        return np.asarray(holds(features).all(axis=1))
    rows = np.repeat(np.arange(features.shape[0]), np.diff(features.indptr))
    return np.asarray(np.bincount(rows, ~holds(features.data), minlength=features.shape[0]) == 0)


def _lengths(features: Features) -> NDArray[np.float64]:
    """Return |x| of each row, (m,)."""
    if isinstance(features, np.ndarray):
        return np.asarray(np.linalg.norm(features.astype(np.float64), axis=1))
    return np.asarray(np.sqrt(features.astype(np.float64).power(2).sum(axis=1)))


def _joining_edges(model: HeldModel, edges: ArrayLike, removal: Removal, new: int) -> NDArray[np.int64]:
    propagator = model.live_graph.propagator
    before = propagator.nodes
    pairs = _pairs(model, edges, before + new)
    live = np.concatenate([propagator.live, np.ones(new, dtype=np.bool_)])
    live[removal.nodes] = False
    if not live[pairs].all():
        dead = np.unique(pairs[~live[pairs]])
        raise GraphError(f"A new edge ends at {some(dead)}, which does not exist (any more).", "Leave it out.")
    if (pairs[:, 0] == pairs[:, 1]).any():
        raise GraphError("A new edge links a node to itself.", "Leave it out: `fit` adds self loops.")
    old = (pairs < before).all(axis=1)
    there = np.zeros(len(pairs), dtype=np.bool_)
    there[old] = propagator.edges.contain(pairs[old])
    joining, leaving = (np.sort(each, axis=1) @ [before + new, 1] for each in (pairs, removal.edges))
    there &= ~np.isin(joining, leaving)
    if there.any():
        raise GraphError(f"The edge {some(map(tuple, pairs[there].tolist()))} exists already.", "Leave it out.")
    return pairs


def _weights(given: ArrayLike | None, edges: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Return the weights of `edges` (k, 2), (k,) float64; None if all are 1."""
    weights = np.ones(len(edges)) if given is None else _read("edge_weight", given)
    if weights.shape != (len(edges),) or (weights.size and weights.dtype.kind not in "biuf"):
        raise GraphError(
            f"The weights are {weights.dtype} of shape {weights.shape} for {len(edges)} edges.",
            "Give one number per edge.",
        )
    weights = weights.astype(np.float64)
    if (wrong := np.flatnonzero(~((weights >= SMALLEST_WEIGHT) & (weights <= LARGEST_WEIGHT)))).size:
        raise GraphError(
            f"The edge {tuple(edges[wrong[0]].tolist())} has the weight {weights[wrong[0]]:g}.",
            f"Give weights from {SMALLEST_WEIGHT:g} to {LARGEST_WEIGHT:g}, and leave out edges of weight 0.",
        )
    return None if (weights == 1).all() else weights


def _labels(model: HeldModel, arriving: Arriving, new: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows to train on from now on, and their classes."""
    classes, before = model.state.classes, model.live_graph.propagator.nodes
    of_new = np.full(new, NO_LABEL) if arriving.node_labels is None else _read("add_labels", arriving.node_labels)
    if of_new.shape != (new,) or (new and of_new.dtype.kind not in "iu"):
        raise GraphError(
            f"add_labels is {of_new.dtype} of shape {of_new.shape} for {new} new nodes.",
            "Give one integer per new node, -1 for a node that is not trained on.",
        )
    rows = np.array(sorted(arriving.labels), dtype=np.int64)
    given = [arriving.labels[row] for row in rows.tolist()]
    of_old = _read("set_labels", given) if given else np.empty(0, dtype=np.int64)
    if of_old.dtype.kind not in "iu" or of_old.ndim != 1:
        raise GraphError(f"The classes in set_labels are {of_old.dtype}.", "Give one integer per node.")
    known = of_new[of_new != NO_LABEL] if new else np.empty(0, dtype=np.int64)
    wrong = np.concatenate([known, of_old])
    if (wrong := wrong[(wrong < 0) | (wrong >= classes)]).size:
        raise GraphError(
            f"The model has no class {some(np.unique(wrong))}.",
            f"Give classes from 0 to {classes - 1}, or fit again with the new one.",
        )
    learnt = np.flatnonzero(of_new != NO_LABEL) if new else np.empty(0, dtype=np.int64)
    return (
        np.concatenate([rows, before + learnt]),
        np.concatenate([of_old, of_new[learnt]]).astype(np.int64),
    )


def _targets(model: HeldModel, arriving: Arriving, new: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the rows to train on from now on, and their real-valued targets, (l, C)."""
    count, before = model.state.classes, model.live_graph.propagator.nodes
    of_new = np.full((new, count), np.nan)
    if arriving.node_labels is not None:
        given = _read("add_labels", arriving.node_labels)
        if given.dtype.kind != "f" or given.shape not in ({(new,), (new, 1)} if count == 1 else {(new, count)}):
            raise GraphError(
                f"add_labels is {given.dtype} of shape {given.shape} for {new} new nodes.",
                f"Give {count} real number(s) per new node, NaN for a node that is not trained on.",
            )
        of_new = given.reshape(new, count).astype(np.float64)
    learnt = np.flatnonzero(~np.isnan(of_new).all(axis=1))
    rows = np.array(sorted(arriving.labels), dtype=np.int64)
    of_old = np.empty((rows.size, count))
    for place, row in enumerate(rows.tolist()):
        given = _read(f"The target of node {row}", arriving.labels[row])
        if given.dtype.kind not in "iuf" or given.shape not in ({(), (1,)} if count == 1 else {(count,)}):
            raise GraphError(
                f"The target of node {row} is {given.dtype} of shape {given.shape}.",
                f"Give {count} real number(s) per node.",
            )
        of_old[place] = given
    label_rows, targets = np.concatenate([rows, before + learnt]), np.concatenate([of_old, of_new[learnt]])
    if (wrong := label_rows[~np.isfinite(targets).all(axis=1)]).size:
        raise GraphError(
            f"The targets of {some(wrong)} are infinite or missing.",
            "Give finite numbers; NaN is for new nodes without any target, and `remove_labels` takes targets away.",
        )
    return label_rows, targets
