"""The softmax loss against automatic differentiation and arithmetic of 50 digits."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.nn.functional import cross_entropy

from model_store.losses import Softmax, loss_of
from model_store.spec import LossKind

LOSS = Softmax()
logit_rows = arrays(np.float64, (5, 4), elements=st.floats(-30, 30))
label_rows = arrays(np.int64, (5,), elements=st.integers(0, 3))


def test_the_specification_names_the_loss() -> None:
    assert isinstance(loss_of(LossKind.SOFTMAX), Softmax)


@settings(deadline=None)
@given(logits=logit_rows, labels=label_rows, direction=logit_rows)
def test_value_residual_and_hessian_are_those_of_cross_entropy(
    logits: np.ndarray, labels: np.ndarray, direction: np.ndarray
) -> None:
    z, y, v = torch.tensor(logits, requires_grad=True), torch.tensor(labels), torch.tensor(direction)
    value = cross_entropy(z, y, reduction="sum")
    (gradient,) = torch.autograd.grad(value, z, create_graph=True)
    (product,) = torch.autograd.grad((gradient * v).sum(), z)
    z = z.detach()
    assert LOSS.value(z, y) == pytest.approx(float(value.detach()), rel=1e-12, abs=1e-12)
    assert torch.allclose(LOSS.residual(z, y), gradient, rtol=0, atol=1e-14)
    assert torch.allclose(LOSS.hessian_product(z, y, v), product, rtol=1e-10, atol=1e-12)


@settings(deadline=None)
@given(logits=logit_rows, labels=label_rows)
def test_residuals_sum_to_zero_in_each_row(logits: np.ndarray, labels: np.ndarray) -> None:
    residual = LOSS.residual(torch.tensor(logits), torch.tensor(labels))
    assert residual.sum(dim=1).abs().max() <= 1e-15


@settings(deadline=None)
@given(logits=logit_rows, direction=logit_rows, shift=st.floats(-5, 5))
def test_the_hessian_does_not_see_a_shift_of_a_whole_row(
    logits: np.ndarray, direction: np.ndarray, shift: float
) -> None:
    z, v = torch.tensor(logits), torch.tensor(direction)
    y = torch.zeros(5, dtype=torch.int64)
    assert torch.allclose(LOSS.hessian_product(z, y, v + shift), LOSS.hessian_product(z, y, v), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("margin", [20.0, 40.0, 200.0, 600.0])
def test_confident_rows_keep_all_their_digits(margin: float) -> None:
    """1 - p_y underflows against 1 from a margin of 37 on, and is still known to 1e-14."""
    z = torch.tensor([[margin, 0.0, -1.0]], dtype=torch.float64)
    y = torch.tensor([0])
    v = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64)
    with mpmath.workdps(700):
        weights = [mpmath.exp(mpmath.mpf(float(entry))) for entry in z[0]]
        p = [weight / sum(weights) for weight in weights]
        mean = sum(p_c * mpmath.mpf(float(v_c)) for p_c, v_c in zip(p, v[0], strict=True))
        residual = [float(p[0] - 1), float(p[1]), float(p[2])]
        product = [float(p_c * (mpmath.mpf(float(v_c)) - mean)) for p_c, v_c in zip(p, v[0], strict=True)]
        value = float(-mpmath.log(p[0]))
    assert LOSS.residual(z, y)[0].tolist() == pytest.approx(residual, rel=1e-13, abs=0.0)
    assert LOSS.hessian_product(z, y, v)[0].tolist() == pytest.approx(product, rel=1e-13, abs=0.0)
    assert LOSS.value(z, y) == pytest.approx(value, rel=1e-13, abs=0.0)


def test_huge_logits_overflow_nothing() -> None:
    z = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], dtype=torch.float64)
    y = torch.tensor([0, 0])
    assert LOSS.value(z, y) == pytest.approx(2e4)
    assert LOSS.residual(z, y).tolist() == [[0.0, 0.0], [-1.0, 1.0]]
    assert LOSS.hessian_product(z, y, z).isfinite().all()
