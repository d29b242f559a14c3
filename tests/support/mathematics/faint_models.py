"""Small models with faint directions, deleted from by the code under test and retrained by another solver.

A direction is faint if survivors support it at 1e-5 of the largest singular value or less. M+ does not carry it, but
the retrained optimum has a part along it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from projector.forgetting.batch import InputRows, ModelState, Projection
from projector.forgetting.certificate import certify
from projector.forgetting.optimum import at_optimum, stacked
from projector.forgetting.repair import RepairOutcome
from projector.network.blocks import side_by_side
from projector.network.spec import Combine, LossKind, ModelSpec
from projector.solvers.preconditioners import ClassBlocks, HessianFactor, block_steps, factor_steps
from tests.support.mathematics.property_models import SmallModel
from tests.support.mathematics.references import dense_representation
from tests.support.mathematics.retraining import Precise, Problem

Matrix = NDArray[np.float64]
KINDS = ("private column", "dependent column", "faint for all", "fading", "duplicates", "float32", "scaled")
#: Below this share of the largest possible optimum, sqrt(2 F(0) / lambda), cancellation in the gradient rounds to more
#: than 1e-8 of it.
TINY = 1e-5


@dataclass(frozen=True)
class Case:
    """One seeded model, and its deletions."""

    X: Matrix
    adjacency: Matrix
    labels: NDArray[np.int64]
    training: NDArray[np.bool_]
    spec: ModelSpec
    batches: list[NDArray[np.int64]]
    #: Whether repairs start with a preconditioner from before the batch.
    old_preconditioner: bool
    #: Whether they take their products with H itself, in single precision.
    dense: bool = True


def random_case(seed: int) -> Case:
    """Return the model of a seed: at most 60 nodes, one kind of faint direction at 1e-2 to 1e-14, 2 or 3 batches."""
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
        old_preconditioner=bool(rng.random() < 0.5),
        dense=bool(rng.random() < 0.5),
    )


@dataclass(frozen=True)
class Step:
    """Results of one batch."""

    projection: Projection
    outcome: RepairOutcome
    #: |W - X^T (beta + X T)| / |W| on the surviving rows, after the projection and after the repair.
    projected_residual: float
    repaired_residual: float
    #: |W - W_u| of the projected and of the repaired weights, |W_u|, and the error of W_u itself.
    projected_distance: float
    distance: float
    size: float
    slack: float
    #: The relative bound of W_u in float64: its rounding error.
    floor: float


class FaintModel(SmallModel):
    """A model at its optimum, in memory, from which the code under test deletes."""

    def __init__(self, case: Case) -> None:
        super().__init__(
            case.X, case.adjacency, case.labels, case.training, case.spec, dense=case.dense,
            classes=max(int(case.labels.max()) + 1, 2),
        )  # fmt: skip
        self.case = case
        objective = self.objective()
        optimum = objective.at(torch.from_numpy(self.retrained()[0].astype(np.float64)))
        self.begin(optimum.W, objective.dual(optimum))
        self.state, coefficients = at_optimum(self.state, objective, optimum)
        self.features = InputRows(self.stored, coefficients[0])

    def delete(self, nodes: NDArray[np.int64]) -> Step:
        """Project and repair as the service does, and retrain the remaining graph from zero."""
        inverse = self._inverse() if self.case.old_preconditioner else None
        projection = self.project(nodes)
        projected = self.span_residual(projection.state, self.features.beta)
        before = stacked(self.state)
        outcome = self.repair(inverse)
        best, slack = self.retrained()
        objective = self.objective()
        floor = certify(objective, objective.at(torch.from_numpy(best.astype(np.float64)))).relative
        return Step(
            projection,
            outcome,
            projected,
            self.span_residual(self.state, self.features.beta),
            float(np.linalg.norm(before.numpy() - best)),
            float(np.linalg.norm(stacked(self.state).numpy() - best)),
            float(np.linalg.norm(best)),
            slack,
            np.inf if floor is None else floor,
        )

    @property
    def condition(self) -> float:
        """Condition number of the remaining strong directions."""
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
        """Return the residual of the paper's guarantee, measured on the surviving rows."""
        X = self.case.X * self.live[:, None]
        W = state.features.W.numpy()
        explained = X.T @ (side_by_side(beta).numpy() + X @ state.features.T.numpy())
        # Next to W = 0 a share of W means nothing.
        return float(np.linalg.norm(W - explained)) / max(float(np.linalg.norm(W)), 1e-8 * self.largest_optimum)

    def retrained(self) -> tuple[Precise, float]:
        """Return W_u (p, C) of the remaining graph and its error, with H and gradients in extended precision."""
        rows, X = self.case.training & self.live, self.case.X.astype(np.longdouble)
        H = dense_representation(self.case.spec, X, self.case.adjacency, self.live)[rows]
        labels, spec = self.case.labels[rows], self.case.spec
        return Problem(H, labels, self.classes, spec.loss, spec.regularization).precise_minimum()

    def _inverse(self) -> ClassBlocks | HessianFactor | None:
        objective = self.objective()
        if objective.representation.rows == 0:
            return None
        # The whole Hessian for half of the models with coupled classes.
        whole = objective.loss.coupled and objective.representation.columns % 2 == 0
        steps = factor_steps if whole else block_steps
        *_, inverse = steps(objective, objective.at(stacked(self.state)), self.rows)
        return inverse
