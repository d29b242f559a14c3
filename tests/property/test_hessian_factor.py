"""A factor of the Hessian preconditions with what the Hessian is, also where only lambda curves the objective."""

import numpy as np
import pytest
import torch

from projector.forgetting.repair import stacked
from projector.solvers import hessian
from projector.solvers.hessian import HessianFactor, factor_steps
from tests.property.faint_models import FaintModel
from tests.property.ill_conditioned import ill_conditioned_case
from tests.property.references import dense_representation
from tests.property.retraining import Matrix, Problem


def factorised(model: FaintModel) -> HessianFactor:
    objective = model.objective()
    *_, factor = factor_steps(objective, objective.at(stacked(model.state)), model.rows)
    assert factor is not None
    return factor


def dense_hessian(model: FaintModel) -> Matrix:
    """Of the objective at the model's weights, (p C, p C)."""
    case, spec = model.case, model.case.spec
    H = dense_representation(spec, case.X, case.adjacency, model.live)[case.training]
    problem = Problem(H, case.labels[case.training], model.classes, spec.loss, spec.regularization)
    return problem.hessian(stacked(model.state).numpy())


def preconditioned_spectrum(model: FaintModel, factor: HessianFactor) -> Matrix:
    """The eigenvalues of the factor's inverse times the Hessian, ascending."""
    A = dense_hessian(model)
    shape = stacked(model.state).shape
    B = np.column_stack([factor.solve(torch.from_numpy(e).reshape(shape)).numpy().ravel() for e in np.eye(len(A))])
    return np.sort(np.linalg.eigvals(B @ A).real)


@pytest.mark.parametrize("seed", range(80))
def test_a_factor_inverts_the_hessian(seed: int) -> None:
    model = FaintModel(ill_conditioned_case(seed))
    spectrum = preconditioned_spectrum(model, factorised(model))
    assert spectrum[0] >= 0.8
    assert spectrum[-1] <= 1.25


def test_rounding_is_lifted_by_no_more_than_lambda() -> None:
    matrix = torch.diag(torch.tensor([1.0, -5e-7], dtype=torch.float32))
    factor = hessian._cholesky(matrix.clone(), 1e-6)
    lifted = (factor @ factor.T - matrix).diagonal()
    assert 5e-7 < float(lifted[1]) <= 1.1e-6
    with pytest.raises(ArithmeticError, match="without a Cholesky factor"):
        hessian._cholesky(torch.diag(torch.tensor([1.0, -2e-6], dtype=torch.float32)), 1e-6)
