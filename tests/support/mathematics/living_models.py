"""A changing graph kept in dense arrays: random updates, and the models that must result.

References are independent of the code under test. The graph is kept here, and the representation is the oracle's. The
minimum comes from another solver with gradients in extended precision, and the rank from an SVD of the rows.
"""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from projector import Model, ModelSpec, Report, fit, from_arrays
from projector.errors import GraphError, TrainingError
from projector.forgetting.factors import whole
from projector.forgetting.optimum import stacked
from projector.forgetting.projection import SpanState, coefficient_residual
from projector.forgetting.rank import RANK_TOLERANCE
from projector.forgetting.status import RepairStatus
from projector.graph.graph import Graph
from projector.network.losses import UNFITTED_TEMPERATURE
from projector.network.spec import ClassWeight, Combine, LossKind, PropagationKind, SolverKind
from tests.support.mathematics.gram_forms import through_rows
from tests.support.mathematics.oracle import Matrix, Oracle, Side
from tests.support.mathematics.retraining import Problem
from tests.support.models.small_graphs import with_weights

KINDS = ("normal", "dependent", "duplicates", "zero rows", "binary", "faint", "uneven columns", "wide")

LOSSES = (LossKind.SOFTMAX, LossKind.OVR, LossKind.HINGE, LossKind.SQUARED)


@dataclass
class Living:
    """The expected graph after all updates so far."""

    spec: ModelSpec
    X: Matrix
    adjacency: Matrix
    #: -1 for nodes outside training.
    targets: NDArray[np.int64]
    classes: int
    #: Real-valued targets, (n, C), of the nodes with class 0; None for classes.
    values: Matrix | None = None
    #: Weight of each class in the loss, (C,), counted before any update; None if all are 1.
    class_weights: Matrix | None = None
    #: Draws the weights of joining edges; None if all are 1.
    weights: np.random.Generator | None = None
    live: NDArray[np.bool_] = field(init=False)
    featured: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.live, self.featured = (np.ones(len(self.X), dtype=np.bool_) for _ in range(2))

    def apply(self, update: dict[str, Any]) -> None:
        """Apply the update given to `Model.update`: all removals, then all additions."""
        nodes = np.array(update.get("remove_nodes", ()), dtype=np.int64)
        self.live[nodes] = False
        self.targets[nodes] = -1
        self.targets[np.array(update.get("remove_labels", ()), dtype=np.int64)] = -1
        self.featured[np.array(update.get("remove_features", ()), dtype=np.int64)] = False
        self._link(update.get("remove_edges", ()), 0.0)
        added = np.array(update.get("add_nodes", np.empty((0, self.X.shape[1]))))
        count, before = len(added), len(self.X)
        self.X = np.vstack([self.X, added])
        self.live, self.featured = (np.concatenate([mask, np.ones(count, bool)]) for mask in (self.live, self.featured))
        if self.values is None:
            joined = update.get("add_labels", np.full(count, -1))
        else:
            given = update.get("add_labels", np.full((count, self.classes), np.nan)).reshape(count, self.classes)
            joined, self.values = np.where(np.isnan(given).all(axis=1), -1, 0), np.vstack([self.values, given])
        self.targets = np.concatenate([self.targets, joined])
        larger = np.zeros((before + count, before + count))
        larger[:before, :before] = self.adjacency
        self.adjacency = larger
        self._link(update.get("add_edges", ()), update.get("add_edge_weight", 1.0))
        for node, row in update.get("set_features", {}).items():
            self.X[node], self.featured[node] = row, True
        for node, label in update.get("set_labels", {}).items():
            if self.values is None:
                self.targets[node] = label
            else:
                self.targets[node], self.values[node] = 0, label

    def _link(self, edges: Any, value: Any) -> None:
        pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
        self.adjacency[pairs[:, 0], pairs[:, 1]] = self.adjacency[pairs[:, 1], pairs[:, 0]] = value

    def in_span(self) -> NDArray[np.bool_]:
        return self.live & self.featured

    def problem(self, H: Matrix) -> Problem:
        """Return the objective, for H (n, p) of all nodes."""
        trained = self.live & (self.targets >= 0)
        values = None if self.values is None else self.values[trained]
        spec, labels = self.spec, self.targets[trained]
        weights = None if self.class_weights is None else self.class_weights[labels]
        return Problem(H[trained], labels, self.classes, spec.loss, spec.regularization, values, weights)

    def answers(self, logits: Matrix) -> Matrix:
        """Return the model's predictions for logits (n, C), with zero rows for nodes that are not live."""
        answered = logits if self.values is not None else probabilities(self.spec.loss, logits)
        return np.where(self.live[:, None], answered, 0.0)

    def representation(self, exponents: NDArray[np.int64] | None, sigmas: tuple[float, float] | None) -> Matrix:
        """Return H of all nodes, (n, p), with columns of X scaled as in the model."""
        X = self.X if exponents is None else self.X * np.exp2(exponents.astype(float))
        n, blocks, spec = len(X), len(self.spec.block_hops), self.spec
        training = self.live & (self.targets >= 0)
        nothing = np.zeros((blocks, X.shape[1], self.classes))
        features = Side(X, nothing, np.zeros((blocks, n, self.classes)), self.in_span(), 0.0)
        Y = np.zeros((n, self.classes))
        Y[training, self.targets[training]] = 1.0
        labels = Side(Y, nothing, nothing, training, 0.0) if spec.label_hops else None
        oracle = Oracle(spec, self.adjacency, np.maximum(self.targets, 0), training, features, labels, sigmas)
        oracle.live = self.live
        return oracle.H() * self.live[:, None]


def sigmas_of(model: Model) -> tuple[float, float] | None:
    sigmas = getattr(model._held.live_graph.inputs.features.operators, "sigmas", None)
    return None if sigmas is None else (sigmas.sigma_h, sigmas.sigma_z)


def check(model: Model, living: Living, report: Report | None) -> None:
    """Check the model against the expected graph: rank, coefficients, predictions and, if present, the bound."""
    held = model._held
    repaired = report is None or report.repair is not RepairStatus.NONE
    assert np.array_equal(model.live, living.live)
    H = living.representation(model.exponents, sigmas_of(model))
    W = stacked(held.state).numpy()
    np.testing.assert_allclose(model.predict(), living.answers(H @ W), atol=1e-8)
    # All inputs together are trained, and repaired, to this.
    optimum = living.spec.tolerance * float(np.linalg.norm(W))
    check_span(held.state.features, held.features, living, model.exponents, repaired, optimum)
    if held.state.labels is not None:
        assert held.labels is not None
        trained = living.live & (living.targets >= 0)
        assert held.state.labels.gram.rank == np.unique(living.targets[trained]).size
        assert np.array_equal(held.state.labels.in_span, trained)
        beta = held.labels.beta[:, torch.from_numpy(trained)]
        assert_identity(held.state.labels, 0.0 if repaired else float(np.sqrt(trained.sum()) * beta.norm()), repaired)
    certificate = model.certificate
    if certificate is None:
        return
    best, error = living.problem(H).precise_minimum(W)
    distance = float(np.linalg.norm(W - best))
    slack = error + np.finfo(float).tiny ** 0.5
    assert distance <= certificate.bound + slack
    if report is not None and report.bound_after is not None:
        assert distance <= report.bound_after.bound + slack


def check_span(
    span: SpanState, given: Any, living: Living, exponents: NDArray[np.int64] | None, repaired: bool, optimum: float
) -> None:
    """Check rank, M and coefficients of the features against the rows; `optimum` is how exactly W was asked for."""
    assert np.array_equal(span.in_span, living.in_span())
    X = living.X if exponents is None else living.X * np.exp2(exponents.astype(float))
    X = X[living.in_span()]
    sigma = np.linalg.svd(X, compute_uv=False)
    cutoff = (RANK_TOLERANCE * span.gram.sigma_ref_squared) ** 0.5
    # A direction within a thousandth of the cutoff may count or not.
    assert (sigma > 1.001 * cutoff).sum() <= span.gram.rank <= (sigma > 0.999 * cutoff).sum()
    scale = max(span.gram.sigma_ref_squared, 1e-300)
    assert np.abs(whole(span.gram.M).numpy() - X.T @ X).max(initial=0.0) <= 1e-11 * scale
    beta = given.beta.numpy()[:, living.in_span()]
    assert_identity(span, 0.0 if repaired else float(np.linalg.norm(X) * np.linalg.norm(beta)), repaired)
    size, T = float(np.linalg.norm(span.W)), span.T.numpy()
    effective = np.hstack(list(beta)) + X @ T
    missing = float(np.linalg.norm(span.W.numpy() - X.T @ effective))
    terms = float(np.linalg.norm(X) * np.linalg.norm(effective))
    assert missing <= 1e-9 * size + 1e-11 * terms + optimum + 1e-150
    assert np.abs(given.beta.numpy()[:, ~living.in_span()]).max(initial=0.0) == 0.0


def assert_identity(span: SpanState, terms: float, repaired: bool) -> None:
    """Check W = B + M T to 1e-11, or to the rounding of B if W nearly vanishes.

    Between repairs, B is a sum of terms of the size `terms`, which may cancel; a barely supported direction makes T
    large, and M T rounds.
    """
    size, rounding = float(span.W.norm()), float(span.B.norm()) + terms
    if not repaired:
        rounding += float(whole(span.gram.M).norm() * span.T.norm())
    assert coefficient_residual(span) * size <= 1e-11 * size + 8 * np.finfo(float).eps * rounding


def probabilities(loss: LossKind, logits: Matrix) -> Matrix:
    """Return the class probabilities of logits (n, C)."""
    if loss is LossKind.SQUARED:
        logits = logits / UNFITTED_TEMPERATURE
    if loss is LossKind.OVR:
        chances = np.exp(-np.logaddexp(0.0, -logits))
    else:
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(chances / chances.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class Case:
    """A seeded graph and specification, and how products and rows of H are computed."""

    graph: Graph
    X: Matrix
    spec: ModelSpec
    rng: np.random.Generator
    #: Whether products use H itself, and whether changed rows of it are always computed separately.
    dense: bool
    partly: bool
    #: Whether the Gram factors are in the form for wide sparse features.
    by_rows: bool

    @contextmanager
    def ways(self) -> Iterator[None]:
        """Make models compute this way in the block."""
        with ExitStack() as stack:
            stack.enter_context(patch("projector.forgetting.live_graph.keeps_dense", lambda *_: self.dense))
            stack.enter_context(through_rows(self.by_rows))
            stack.enter_context(patch("projector.network.image_rows._WORTH", np.inf if self.partly else 0.5))
            yield


def random_case(seed: int, weighted: bool = False, **settings: Any) -> Case:
    """Return a graph of at most 80 nodes and any specification with `settings`, by seed."""
    rng = np.random.default_rng(seed)
    n, d, classes = int(rng.integers(1, 61)), int(rng.integers(1, 9)), int(rng.integers(2, 4))
    kind = KINDS[int(rng.integers(len(KINDS)))]
    X = _features(rng, kind, n, d)
    dtype = np.float32 if rng.random() < 0.3 else np.float64
    X = X.astype(dtype)
    labels = rng.integers(0, classes, n)
    labels[: min(n, classes)] = np.arange(classes)[: min(n, classes)]
    if n < classes:
        classes = 2
    training = rng.random(n) < 0.7
    training[0] = True
    upper = np.triu(rng.random((n, n)) < rng.uniform(0.0, 6.0 / n), 1)
    spec = replace(random_spec(rng), **settings)
    if training.sum() < 2:
        # Adaptive diffusion needs one node to train on, and one that validates.
        spec = replace(spec, diffusion=False)
    stored = sp.csr_array(X) if rng.random() < 0.4 else X
    real = spec.loss is LossKind.SQUARED and not (spec.label_hops or spec.diffusion) and rng.random() < 0.5
    real = real and spec.class_weight is ClassWeight.NONE
    given = rng.standard_normal((n, classes - 1)) if real else labels
    adjacency = sp.csr_array((upper | upper.T).astype(float))
    if weighted:
        adjacency = with_weights(adjacency, seed)
    graph = from_arrays(adjacency, stored, given, train_mask=training)
    if not real and graph.num_classes < classes:
        graph = replace(graph, class_names=tuple(map(str, range(classes))))
    dense, partly = (bool(chance < 0.5) for chance in rng.random(2))
    return Case(graph, X.astype(np.float64), spec, rng, dense, partly, by_rows=seed % 4 >= 2)


def random_spec(rng: np.random.Generator) -> ModelSpec:
    plain = rng.random() < 0.05
    loss = LossKind.PLAIN_HINGE if plain else LOSSES[int(rng.integers(len(LOSSES)))]
    return ModelSpec(
        propagation=list(PropagationKind)[int(rng.integers(2))],
        self_loops=(0.0, 0.5, 1.0, 1.0, 2.0)[int(rng.integers(5))],
        hops=int(rng.integers(1, 4)),
        combine=list(Combine)[int(rng.integers(2))],
        loss=loss,
        label_hops=int(rng.integers(0, 3)) if rng.random() < 0.4 else 0,
        diffusion=bool(rng.random() < 0.05),
        gamma=0.7,
        regularization=10.0 ** rng.uniform(-4, -2),
        solver=SolverKind.SGD if plain else SolverKind.NEWTON,
        epochs=20,
    )


def _features(rng: np.random.Generator, kind: str, n: int, d: int) -> Matrix:
    X = rng.standard_normal((n, d))
    match kind:
        case "dependent":
            X = X[:, :1] @ rng.standard_normal((1, d)) + (rng.random() < 0.5) * X[:, -1:] @ rng.standard_normal((1, d))
        case "duplicates":
            X = X[rng.integers(max(1, n // 3), size=n)]
        case "zero rows":
            X[rng.random(n) < 0.5] = 0.0
        case "binary":
            X = (rng.random((n, d)) < 0.3).astype(float)
        case "faint":
            X[:, -1] = 10.0 ** rng.uniform(-9, -4) * (rng.random(n) < 0.3)
        case "uneven columns":
            X = X * 10.0 ** rng.uniform(-4, 4, d)
        case "wide":
            X = np.hstack([X, rng.standard_normal((n, 12)) * (rng.random((n, 12)) < 0.2)])
    return X / np.sqrt(X.shape[1])


def random_update(rng: np.random.Generator, living: Living, X: Matrix, *, most: int = 80) -> dict[str, Any]:
    """Draw a random update; features are drawn from and mixed from the rows `X`."""
    update: dict[str, Any] = {}
    free = rng.permutation(np.flatnonzero(living.live)).tolist()

    def take(chance: float, largest: int = 3) -> list[int]:
        if rng.random() >= chance:
            return []
        return [free.pop() for _ in range(min(int(rng.integers(1, largest + 1)), max(0, len(free) - 1)))]

    def row() -> Matrix:
        one = X[rng.integers(len(X))] * rng.choice([1.0, 1.0, -0.5, 3.0])
        if rng.random() < 0.3:
            one = one + np.eye(X.shape[1])[rng.integers(X.shape[1])] * 10.0 ** rng.uniform(-8, 0.5)
        return np.asarray(one, dtype=np.float32).astype(np.float64) if rng.random() < 0.9 else np.zeros_like(one)

    gone = take(0.4)
    without = [node for node in take(0.2) if living.featured[node]]
    silent = [node for node in take(0.2) if living.targets[node] >= 0]
    update |= {"remove_nodes": gone, "remove_features": without, "remove_labels": silent}
    if rng.random() < 0.25:
        update["set_features"] = {node: row() for node in take(1.0)}
    if rng.random() < 0.25:
        update["set_labels"] = {
            node: int(rng.integers(living.classes)) if living.values is None else rng.standard_normal(living.classes)
            for node in take(1.0)
        }
    before, count = len(living.X), int(rng.integers(0, 4))
    count = min(count, max(0, most - int(living.live.sum())))
    if count:
        update["add_nodes"] = np.array([row() for _ in range(count)])
        update["add_labels"] = rng.integers(-1, living.classes, count)
        if living.values is not None:
            unknown = rng.random((count, 1)) < 0.3
            update["add_labels"] = np.where(unknown, np.nan, rng.standard_normal((count, living.classes)))
    alive = np.setdiff1d(np.flatnonzero(living.live), gone)
    there = np.argwhere(np.triu(living.adjacency) * np.outer(living.live, living.live))
    kept = there[~np.isin(there, gone).any(axis=1)]
    if len(kept) and rng.random() < 0.4:
        update["remove_edges"] = rng.permutation(kept)[: int(rng.integers(1, 4))]
    ends = np.concatenate([alive, before + np.arange(count)])
    pairs = np.sort(rng.choice(ends, (int(rng.integers(0, 3 + 2 * count)), 2)), axis=1)
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    old = np.array([a < before and b < before and bool(living.adjacency[a, b]) for a, b in pairs], dtype=bool)
    update["add_edges"] = pairs[~old]
    if living.weights is not None:
        # Some edges that leave join again with another weight.
        again = np.array(update.get("remove_edges", pairs[:0]))
        again = again[~np.isin(again, gone).any(axis=1) & (living.weights.random(len(again)) < 0.5)]
        update["add_edges"] = np.concatenate([pairs[~old], again])
        update["add_edge_weight"] = 10.0 ** living.weights.uniform(-2, 1, len(update["add_edges"]))
    return {name: value for name, value in update.items() if len(value)}


def sequence(
    seed: int, monitored: bool = False, weighted: bool = False, **settings: Any
) -> tuple[Model, Living, Report | None]:
    """Return the model of a seed after 1 to 60 random updates, and its expected graph; `monitored` checks each."""
    case = random_case(seed, weighted, **settings)
    rng, repaired = case.rng, case.spec.loss is not LossKind.PLAIN_HINGE
    targets = np.where(case.graph.train_mask, case.graph.labels, -1)
    adjacency = case.graph.adjacency.toarray() * case.spec.uses_edges
    living = Living(case.spec, case.X, adjacency, targets, case.graph.num_classes, case.graph.values)
    living.weights = np.random.default_rng([seed, 1]) if weighted else None
    if case.spec.class_weight is ClassWeight.BALANCED:
        living.class_weights = balanced(targets[targets >= 0], living.classes)
    report: Report | None = None
    with case.ways(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Rounding limits the bound")
        model, living.spec = fitted(case)
        updates = int(np.ceil(60 ** rng.random()))
        for number in range(updates):
            update = random_update(rng, living, case.X)
            if not case.spec.uses_edges:
                update.pop("add_edges", None)
            if not repaired:
                update.pop("remove_labels", None)
                update["set_labels"] = {
                    node: label for node, label in update.get("set_labels", {}).items() if living.targets[node] < 0
                }
            if not any(len(each) for each in update.values()):
                continue
            relabelled = any(living.targets[node] >= 0 for node in update.get("set_labels", {}))
            repair = repaired and (
                "remove_labels" in update or relabelled or number == updates - 1 or rng.random() < 0.6
            )
            if too_long(model, update):
                with pytest.raises(GraphError, match="times as long"):
                    model.update(**update, repair=repair)
                continue
            model, report = model.update(**update, repair=repair)
            living.apply(update)
            if monitored:
                check(model, living, report)
    return model, living, report


def balanced(labels: NDArray[np.int64], classes: int) -> Matrix:
    """Return the weights with which each class among `labels` counts alike; 1 for a class that is not among them."""
    counts = np.array([np.count_nonzero(labels == label) for label in range(classes)])
    there = np.count_nonzero(counts)
    return np.array([len(labels) / (there * count) if count else 1.0 for count in counts])


def fitted(case: Case) -> tuple[Model, ModelSpec]:
    """Fit the model of a case and return its settings.

    Raises lambda if rounding hides the optimum. Leaves adaptive diffusion out where every lambda refuses it, as on
    graphs whose neighbours say nothing.
    """
    spec = case.spec
    while True:
        try:
            return fit(case.graph, spec), spec
        except TrainingError as error:
            if spec.regularization < 1e6:
                spec = replace(spec, regularization=100.0 * spec.regularization)
            elif "Adaptive diffusion diverged" in str(error):
                spec = replace(case.spec, diffusion=False)
            else:
                raise


def too_long(model: Model, update: dict[str, Any]) -> bool:
    """Whether a new row is more than 100 times as long as the largest singular value at import."""
    rows = np.array([*update.get("add_nodes", ()), *update.get("set_features", {}).values()])
    if not rows.size:
        return False
    scaled = rows if model.exponents is None else rows * np.exp2(model.exponents.astype(float))
    reference = model._held.state.features.gram.sigma_ref_squared**0.5
    return bool(reference and np.linalg.norm(scaled, axis=1).max() > 100.0 * reference)
