"""Class blocks and factors precondition with the Hessian itself, even if only lambda curves the objective."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from projector.forgetting.optimum import stacked
from projector.network.losses import OneVsRest, Softmax
from projector.network.representation import Representation
from projector.network.spec import LossKind
from projector.solvers import preconditioners
from projector.solvers.preconditioners import ClassBlocks, HessianFactor, block_steps, factor_steps, takes_whole
from tests.support.everyday import everyday
from tests.support.mathematics.faint_models import FaintModel
from tests.support.mathematics.ill_conditioned import ill_conditioned_case
from tests.support.mathematics.references import dense_representation
from tests.support.mathematics.retraining import Matrix, Problem


class Reading(Representation):
    """A representation with a known size only, and the amount that a product reads."""

    def __init__(self, columns: int, bytes_of_product: float) -> None:
        self._columns, self._bytes = columns, bytes_of_product

    @property
    def columns(self) -> int:
        return self._columns

    def bytes_of_product(self, classes: int) -> float:
        return self._bytes


def made(model: FaintModel) -> ClassBlocks:
    objective = model.objective()
    *_, blocks = block_steps(objective, objective.at(stacked(model.state)), model.rows)
    assert blocks is not None
    return blocks


def dense_hessian(model: FaintModel) -> Matrix:
    """Return the objective's Hessian at the model's weights, (p C, p C)."""
    case, spec = model.case, model.case.spec
    H = dense_representation(spec, case.X, case.adjacency, model.live)[case.training]
    problem = Problem(H, case.labels[case.training], model.classes, spec.loss, spec.regularization)
    return problem.hessian(stacked(model.state).numpy())


def as_matrix(model: FaintModel, inverse: ClassBlocks | HessianFactor) -> Matrix:
    shape = stacked(model.state).shape
    units = np.eye(shape[0] * shape[1])
    return np.column_stack([inverse.solve(torch.from_numpy(e).reshape(shape)).numpy().ravel() for e in units])


@pytest.mark.parametrize("seed", everyday(range(80), *range(15)))
@pytest.mark.parametrize("loss", [LossKind.OVR, LossKind.HINGE])
def test_where_classes_are_apart_the_blocks_invert_the_hessian(loss: LossKind, seed: int) -> None:
    case = ill_conditioned_case(seed)
    model = FaintModel(replace(case, spec=replace(case.spec, loss=loss)))
    spectrum = np.sort(np.linalg.eigvals(as_matrix(model, made(model)) @ dense_hessian(model)).real)
    assert spectrum[0] >= 0.8
    assert spectrum[-1] <= 1.25


@pytest.mark.parametrize("seed", everyday(range(80), *range(15)))
def test_where_classes_act_on_each_other_the_factor_of_all_inverts_the_hessian(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        # In several steps.
        monkeypatch.setattr(preconditioners, "_PANEL", 5)
    case = ill_conditioned_case(seed)
    model = FaintModel(replace(case, spec=replace(case.spec, loss=LossKind.SOFTMAX)))
    objective = model.objective()
    *_, factor = factor_steps(objective, objective.at(stacked(model.state)), model.rows)
    assert factor is not None
    spectrum = np.sort(np.linalg.eigvals(as_matrix(model, factor) @ dense_hessian(model)).real)
    assert spectrum[0] >= 0.8
    assert spectrum[-1] <= 1.25


def test_the_factor_of_all_is_taken_where_reading_it_costs_little() -> None:
    photo, arxiv = Reading(745, 63e6), Reading(800, 580e6)
    assert takes_whole(photo, 8, Softmax())
    assert not takes_whole(photo, 8, OneVsRest())
    assert not takes_whole(arxiv, 40, Softmax())


@pytest.mark.parametrize("seed", everyday(range(40), *range(15)))
def test_where_classes_act_on_each_other_the_direction_of_all_alike_is_exact(seed: int) -> None:
    case = ill_conditioned_case(seed)
    model = FaintModel(replace(case, spec=replace(case.spec, loss=LossKind.SOFTMAX)))
    blocks, p = made(model), stacked(model.state).shape[0]
    alike = torch.linspace(-1.0, 1.0, p, dtype=torch.float64)[:, None].expand(p, model.classes)
    assert torch.allclose(blocks.solve(alike) * case.spec.regularization, alike, rtol=1e-6, atol=1e-9)
    inverse = as_matrix(model, blocks)
    size = np.abs(inverse).max()
    assert np.abs(inverse - inverse.T).max() <= 1e-5 * size
    assert np.linalg.eigvalsh((inverse + inverse.T) / 2)[0] >= -1e-5 * size


def test_rows_are_drawn_in_proportion_to_their_curvature_and_weighed_against_it() -> None:
    rng = np.random.default_rng(0)
    curvature = torch.from_numpy(rng.random(20_000) ** 6 * (rng.random(20_000) < 0.8))
    curvature[7] = 50.0
    H = torch.from_numpy(rng.standard_normal((20_000, 3)))
    whole = H.T @ (H * curvature[:, None])
    for seed in range(5):
        drawn, shares = preconditioners._drawn(curvature, 3_000, torch.Generator().manual_seed(seed))
        assert abs(len(drawn) - 3_000) <= 10
        assert 7 in drawn.tolist()
        assert bool((curvature[drawn] > 0).all())
        estimate = H[drawn].T @ (H[drawn] * (curvature[drawn] / shares)[:, None])
        assert float(torch.linalg.norm(estimate - whole)) <= 0.1 * float(torch.linalg.norm(whole))


def test_class_blocks_are_in_double_precision_where_rounding_would_reach_lambda() -> None:
    case = ill_conditioned_case(0)
    spec = replace(case.spec, loss=LossKind.OVR, regularization=1e-4)
    X = case.X / np.linalg.norm(case.X, axis=1).max()
    kinds = [made(FaintModel(replace(case, X=size * X, spec=spec))).inverses.dtype for size in (1.0, 1e4)]
    assert kinds == [torch.float32, torch.float64]
