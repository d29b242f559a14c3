"""Small models with faint directions, deleted from by the code under test, and retrained by another solver.

A direction is faint when survivors support it at 1e-5 of the largest singular value or less: below what M+ carries, and
yet the retrained optimum has a part along it.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from projector.forgetting.batch import InputRows, ModelState, Projection, Removal, project_batch
from projector.forgetting.gram import factorise
from projector.forgetting.live_graph import LiveGraph
from projector.forgetting.projection import SpanState
from projector.forgetting.repair import Repair, RepairOutcome, at_optimum, stacked
from projector.forgetting.training_rows import TrainingRows
from projector.graph.features import FeatureMatrix
from projector.graph.graph import NO_LABEL
from projector.network.blocks import side_by_side
from projector.network.inputs import inputs_of
from projector.network.losses import loss_of
from projector.network.propagation import Propagator
from projector.network.spec import Combine, LossKind, ModelSpec
from projector.solvers.hessian import HessianFactor, factor_steps
from tests.property.retraining import Problem

Matrix = NDArray[np.float64]
KINDS = ("private column", "dependent column", "faint for all", "fading", "duplicates", "float32", "scaled")


@dataclass(frozen=True)
class Case:
    """One seeded model, and what is deleted from it."""

    X: Matrix
    adjacency: Matrix
    labels: NDArray[np.int64]
    training: NDArray[np.bool_]
    spec: ModelSpec
    batches: list[NDArray[np.int64]]
    #: Whether repairs start with a factor of the Hessian from before the batch.
    old_factor: bool


def random_case(seed: int) -> Case:
    """The model of a seed: at most 60 nodes, one kind of faint direction at 1e-2 to 1e-14, two or three batches."""
    rng = np.random.default_rng(seed)
    n, d, classes = int(rng.integers(6, 61)), int(rng.integers(2, 8)), int(rng.integers(2, 4))
    X = rng.standard_normal((n, d)) if rng.random() < 0.5 else (rng.random((n, d)) < 0.4).astype(np.float64)
    X[rng.random(n) < 0.1] = 0.0
    faintness = 10.0 ** rng.uniform(-14, -2)
    order = rng.permutation(n)
    column = np.zeros(n)
    kind = KINDS[int(rng.integers(len(KINDS)))]
    match kind:
        case "private column":
            column[order[0]] = 1.0
            column[order[1 : 1 + int(rng.integers(1, 4))]] = faintness
        case "dependent column":
            column = X @ rng.standard_normal(d) + faintness * rng.standard_normal(n)
        case "faint for all":
            column = faintness * rng.standard_normal(n)
            column[order[:2]] = 1.0
        case "fading":
            column[order[:5]] = 10.0 ** (-np.arange(5) * rng.uniform(1, 4))
        case "duplicates":
            X[order[1]] = X[order[0]]
            column[order[:2]] = 1.0
            column[order[2]] = faintness
        case "float32":
            X = X.astype(np.float32).astype(np.float64)
            column = (X.astype(np.float32) @ rng.standard_normal(d).astype(np.float32)).astype(np.float64)
        case "scaled":
            column[order[:3]] = [1.0, faintness, -faintness]
            X = X * 10.0 ** rng.uniform(-3.0, 0.0, d)
    # Rows of about unit size: the certificate's floor is eps |h|^2 / lambda.
    X = np.c_[X, column] / np.sqrt(d)
    if rng.random() < 0.3:
        X = X @ np.linalg.qr(rng.standard_normal((d + 1, d + 1)))[0]
    upper = np.triu(rng.random((n, n)) < rng.uniform(0.0, 6.0 / n), 1)
    training = rng.random(n) < 0.7
    training[order[:2]] = True
    first = order[: int(rng.integers(1, 4))]
    rest = order[first.size :]
    second, third = rest[: int(rng.integers(1, 3))], rest[3 : 3 + int(rng.integers(0, 3))]
    return Case(
        X=X,
        adjacency=(upper | upper.T).astype(np.float64),
        labels=rng.integers(0, classes, n),
        training=training,
        spec=ModelSpec(
            hops=int(rng.integers(0, 3)) or 1,
            combine=list(Combine)[int(rng.integers(2))],
            loss=(LossKind.SOFTMAX, LossKind.OVR, LossKind.HINGE)[int(rng.integers(3))],
            regularization=10.0 ** rng.uniform(-6, -3),
        ),
        batches=[batch for batch in (first, second, third) if batch.size],
        old_factor=bool(rng.random() < 0.5),
    )


@dataclass(frozen=True)
class Step:
    """What one batch came to."""

    projection: Projection
    outcome: RepairOutcome
    #: |W - X^T (beta + X T)| / |W| on the surviving rows, after the projection and after the repair.
    projected_residual: float
    repaired_residual: float
    #: |W - W_u| of the repaired weights, |W_u|, and how far W_u itself may be off.
    distance: float
    size: float
    slack: float


class FaintModel:
    """A model at its optimum, in memory, from which the code under test deletes."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.live = np.ones(len(case.X), dtype=np.bool_)
        self.classes = max(int(case.labels.max()) + 1, 2)
        rows = FeatureMatrix(case.X)
        propagator = Propagator.build(sp.csr_array(case.adjacency), case.spec.propagation, case.spec.self_loops)
        inputs = inputs_of(case.spec, rows, sp.csr_array((len(case.X), self.classes)), propagator)
        targets = np.where(case.training, case.labels, NO_LABEL)
        self.graph = LiveGraph(inputs, propagator, loss_of(case.spec.loss), targets)
        self.rows = TrainingRows(self.graph)
        objective = self.graph.objective(case.spec.regularization)
        optimum = objective.at(torch.from_numpy(self.retrained()[0]))
        W = side_by_side(objective.representation.split(optimum.W)[0])
        span = SpanState(W, torch.zeros_like(W), torch.zeros_like(W), factorise(rows, self.live), self.live)
        state = ModelState(0, span, None, self.live, self.classes)
        self.state, coefficients = at_optimum(state, objective, optimum)
        self.features = InputRows(rows, side_by_side(torch.from_numpy(coefficients.beta)))

    def delete(self, nodes: NDArray[np.int64]) -> Step:
        """Projects and repairs as the service does, and retrains what is left from zero."""
        factor = self._factor() if self.case.old_factor else None
        projection = project_batch(self.state, self.features, None, [Removal(nodes=nodes)])
        none = np.empty(0, dtype=np.int64)
        self.graph = self.graph.without(nodes, np.empty((0, 2), dtype=np.int64), none)
        self.rows = self.rows.on(self.graph)
        self.live = projection.state.live
        self.features.beta[torch.from_numpy(nodes)] = 0.0
        projected = self.span_residual(projection.state, self.features.beta)
        repair = Repair(projection.state, self.graph.objective(self.case.spec.regularization), factor, self.rows)
        repair.advance()
        self.state, outcome = repair.repaired()
        assert outcome.coefficients is not None
        self.features = InputRows(self.features.rows, side_by_side(torch.from_numpy(outcome.coefficients.beta)))
        best, slack = self.retrained()
        return Step(
            projection,
            outcome,
            projected,
            self.span_residual(self.state, self.features.beta),
            float(np.linalg.norm(stacked(self.state).numpy() - best)),
            float(np.linalg.norm(best)),
            slack,
        )

    @property
    def condition(self) -> float:
        """Of the strong directions that are left."""
        sigma = np.linalg.svd(self.case.X[self.live], compute_uv=False)
        gram = self.state.features.gram
        strong = sigma[sigma > (gram.rank_tolerance * gram.sigma_ref_squared) ** 0.5]
        return float(np.sqrt(gram.sigma_ref_squared) / strong[-1]) if strong.size else 1.0

    @property
    def largest_optimum(self) -> float:
        """sqrt(2 F(0) / lambda), which no optimum exceeds."""
        per_row = {LossKind.SOFTMAX: np.log(self.classes), LossKind.OVR: self.classes * np.log(2)}
        return float(np.sqrt(2 * per_row.get(self.case.spec.loss, self.classes / 2) / self.case.spec.regularization))

    def span_residual(self, state: ModelState, beta: torch.Tensor) -> float:
        """The paper's guarantee, measured on the surviving rows."""
        X = self.case.X * self.live[:, None]
        W = state.features.W.numpy()
        explained = X.T @ (beta.numpy() + X @ state.features.T.numpy())
        # Next to W = 0 a share of W means nothing.
        return float(np.linalg.norm(W - explained)) / max(float(np.linalg.norm(W)), 1e-8 * self.largest_optimum)

    def retrained(self) -> tuple[Matrix, float]:
        """W_u (p, C) of the remaining graph, by a dense factor and gradients in extended precision, and its error."""
        A = self.case.adjacency * np.outer(self.live, self.live) + np.diag(self.case.spec.self_loops * self.live)
        scale = np.sqrt(np.divide(1.0, A.sum(axis=1), out=np.zeros(len(A)), where=self.live))
        P, X = A * np.outer(scale, scale), self.case.X * self.live[:, None]
        rows = self.case.training & self.live
        H = np.hstack([(np.linalg.matrix_power(P, hop) @ X)[rows] for hop in self.case.spec.block_hops])
        labels, spec = self.case.labels[rows], self.case.spec
        return Problem(H, labels, self.classes, spec.loss, spec.regularization).precise_minimum()

    def _factor(self) -> HessianFactor | None:
        objective = self.graph.objective(self.case.spec.regularization)
        if objective.representation.rows == 0:
            return None
        *_, factor = factor_steps(objective, objective.at(stacked(self.state)), self.rows)
        return factor
