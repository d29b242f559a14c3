"""Newton's method where the smoothed hinge bends: rows hundreds of times larger than the others."""

import numpy as np
import pytest
import torch

from projector.network.spec import Combine, LossKind, ModelSpec
from projector.solvers.newton import Newton
from tests.support.mathematics.property_models import SmallModel
from tests.support.mathematics.retraining import Problem


@pytest.mark.parametrize(
    ("H", "labels", "regularization"),
    [
        ([[-500, 100], [-5, 2], [-5, 1]], [1, 1, 0], 1e-3),
        ([[-300, 200, 400], [2, 4, -1], [-2, -3, -4], [3, 2, 1]], [0, 0, 1, 0], 1e-2),
        ([[-2000, 2000, 4000], [4, -4, -5], [3, -2, -4]], [0, 1, 0], 1.0),
    ],
)
def test_a_row_far_larger_than_the_others_does_not_keep_it_from_the_optimum(
    H: list[list[float]], labels: list[int], regularization: float
) -> None:
    """Steps that were solved for to a quarter of the gradient went to and fro across that row's kink."""
    rows, y = np.array(H, dtype=np.float64), np.array(labels)
    # Nodes without edges: their rows of H are their features.
    spec = ModelSpec(hops=1, combine=Combine.LAST, loss=LossKind.HINGE, regularization=regularization)
    model = SmallModel(rows, np.zeros((len(y), len(y))), y, np.ones(len(y), dtype=np.bool_), spec, classes=2)
    objective = model.objective()
    solver = Newton(objective, objective.at(torch.zeros((rows.shape[1], 2), dtype=torch.float64)), 5e-9)
    while not solver.finished:
        solver.step()
    best, error = Problem(rows.astype(np.longdouble), y, 2, LossKind.HINGE, regularization).precise_minimum()
    assert error <= 1e-12 * np.linalg.norm(best)
    assert np.linalg.norm(solver.best.W.numpy() - best) <= 5e-9 * np.linalg.norm(best)
    assert solver.converged
