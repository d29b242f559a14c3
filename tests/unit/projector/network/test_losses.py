"""The losses against automatic differentiation of their definitions and arithmetic with 700 digits."""

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from projector.network.losses import Loss, OneVsRest, PlainHinge, Regression, SmoothHinge, Softmax, Squared, loss_of
from projector.network.spec import LossKind

logit_rows = arrays(np.float64, (5, 4), elements=st.floats(-30, 30))
near_margin = arrays(np.float64, (5, 4), elements=st.floats(-3, 3))
#: Away from -1, 0 and 1, where hinges bend.
sizes = st.floats(0.01, 0.99) | st.floats(1.01, 30)
unbent = arrays(np.float64, (5, 4), elements=sizes | sizes.map(lambda size: -size))
label_rows = arrays(np.int64, (5,), elements=st.integers(0, 3))
every_loss = pytest.mark.parametrize("kind", list(LossKind))

#: Each loss by its textbook definition, summed over rows, for logits and labels.
DEFINITIONS: dict[LossKind, Callable[[Tensor, Tensor], Tensor]] = {
    LossKind.SOFTMAX: lambda z, y: cross_entropy(z, y, reduction="sum"),
    LossKind.OVR: lambda z, y: torch.log1p((-margins(z, y)).exp()).sum(),
    LossKind.HINGE: lambda z, y: torch.where(
        margins(z, y) >= 0, (1 - margins(z, y)).clamp(min=0) ** 2 / 2, 0.5 - margins(z, y)
    ).sum(),
    LossKind.PLAIN_HINGE: lambda z, y: (1 - margins(z, y)).clamp(min=0).sum(),
    LossKind.SQUARED: lambda z, y: ((z - one_hot(y, z.shape[1])) ** 2).sum() / 2,
}


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    return logits * (2 * one_hot(labels, logits.shape[1]) - 1)


def derivatives(kind: LossKind, z: Tensor, y: Tensor, v: Tensor) -> tuple[float, Tensor, Tensor]:
    """Return value, gradient and Hessian product of the definition, by automatic differentiation."""
    z = z.clone().requires_grad_()
    value = DEFINITIONS[kind](z, y)
    (gradient,) = torch.autograd.grad(value, z, create_graph=True)
    if not gradient.requires_grad:
        return float(value.detach()), gradient, torch.zeros_like(z)
    (product,) = torch.autograd.grad((gradient * v).sum(), z)
    return float(value.detach()), gradient.detach(), product


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (LossKind.SOFTMAX, Softmax),
        (LossKind.OVR, OneVsRest),
        (LossKind.HINGE, SmoothHinge),
        (LossKind.PLAIN_HINGE, PlainHinge),
        (LossKind.SQUARED, Squared),
    ],
)
def test_the_specification_names_the_loss(kind: LossKind, expected: type[Loss]) -> None:
    assert isinstance(loss_of(kind), expected)


@every_loss
@settings(deadline=None, max_examples=40)
@given(logits=unbent, labels=label_rows, direction=logit_rows)
def test_value_residual_and_hessian_are_those_of_the_definition(
    kind: LossKind, logits: np.ndarray, labels: np.ndarray, direction: np.ndarray
) -> None:
    z, y, v = torch.tensor(logits), torch.tensor(labels), torch.tensor(direction)
    loss, (value, gradient, product) = loss_of(kind), derivatives(kind, z, y, v)
    assert loss.value(z, y) == pytest.approx(value, rel=1e-12, abs=1e-12)
    assert torch.allclose(loss.residual(z, y), gradient, rtol=0, atol=1e-14)
    assert torch.allclose(loss.hessian(z, y)(v), product, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [LossKind.SOFTMAX, LossKind.OVR, LossKind.HINGE, LossKind.SQUARED])
@settings(deadline=None, max_examples=40)
@given(logits=unbent, labels=label_rows, direction=near_margin)
def test_residuals_and_hessians_are_finite_differences(
    kind: LossKind, logits: np.ndarray, labels: np.ndarray, direction: np.ndarray
) -> None:
    loss, step = loss_of(kind), 1e-5
    z, y, v = torch.tensor(logits), torch.tensor(labels), torch.tensor(direction)
    ahead, behind = z + step * v, z - step * v
    slope = (loss.value(ahead, y) - loss.value(behind, y)) / (2 * step)
    assert slope == pytest.approx(float((loss.residual(z, y) * v).sum()), rel=1e-5, abs=1e-5)
    curved = (loss.residual(ahead, y) - loss.residual(behind, y)) / (2 * step)
    assert torch.allclose(curved, loss.hessian(z, y)(v), rtol=1e-5, atol=1e-6)


@every_loss
@settings(deadline=None, max_examples=40)
@given(first=near_margin, second=near_margin, labels=label_rows)
def test_every_loss_lies_above_its_tangents(
    kind: LossKind, first: np.ndarray, second: np.ndarray, labels: np.ndarray
) -> None:
    """Convexity, and that residuals are subgradients even at bends."""
    loss, z, w, y = loss_of(kind), torch.tensor(first), torch.tensor(second), torch.tensor(labels)
    tangent = loss.value(z, y) + float((loss.residual(z, y) * (w - z)).sum())
    assert loss.value(w, y) >= tangent - 1e-11 * (1 + abs(tangent))


@pytest.mark.parametrize("margin", [20.0, 40.0, 200.0, 600.0])
def test_confident_rows_of_the_softmax_keep_all_their_digits(margin: float) -> None:
    """1 - p_y underflows against 1 from a margin of 37 on, and is still accurate to 1e-14."""
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
    loss = Softmax()
    assert loss.residual(z, y)[0].tolist() == pytest.approx(residual, rel=1e-13, abs=0.0)
    assert loss.hessian(z, y)(v)[0].tolist() == pytest.approx(product, rel=1e-13, abs=0.0)
    assert loss.value(z, y) == pytest.approx(value, rel=1e-13, abs=0.0)


@pytest.mark.parametrize("margin", [20.0, 40.0, 200.0, 600.0])
def test_confident_rows_of_one_vs_rest_keep_all_their_digits(margin: float) -> None:
    z = torch.tensor([[margin, -margin, -2 * margin / 3]], dtype=torch.float64)
    y = torch.tensor([0])
    v = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64)
    with mpmath.workdps(700):
        grown = [mpmath.exp(abs(mpmath.mpf(float(entry)))) for entry in z[0]]
        residual = [float(sign / (1 + e)) for sign, e in zip([-1, 1, 1], grown, strict=True)]
        product = [float(mpmath.mpf(float(v_c)) * e / (1 + e) ** 2) for v_c, e in zip(v[0], grown, strict=True)]
        value = float(sum(mpmath.log(1 + 1 / e) for e in grown))
    loss = OneVsRest()
    assert loss.residual(z, y)[0].tolist() == pytest.approx(residual, rel=1e-13, abs=0.0)
    assert loss.hessian(z, y)(v)[0].tolist() == pytest.approx(product, rel=1e-13, abs=0.0)
    assert loss.value(z, y) == pytest.approx(value, rel=1e-13, abs=0.0)


@pytest.mark.parametrize("slack", [1e-3, 1e-9, 2.0**-50])
def test_rows_just_inside_the_margin_of_the_smooth_hinge_keep_all_their_digits(slack: float) -> None:
    z, y = torch.tensor([[1 - slack, -2.0]], dtype=torch.float64), torch.tensor([0])
    slack = float(1 - z[0, 0])
    assert SmoothHinge().residual(z, y).tolist() == [[-slack, 0.0]]
    assert SmoothHinge().value(z, y) == pytest.approx(slack**2 / 2, rel=1e-15, abs=0.0)


@settings(deadline=None)
@given(logits=near_margin, labels=label_rows)
def test_smoothing_lowers_each_hinge_by_at_most_a_half(logits: np.ndarray, labels: np.ndarray) -> None:
    z, y = torch.tensor(logits), torch.tensor(labels)
    gap = PlainHinge().value(z, y) - SmoothHinge().value(z, y)
    assert -1e-12 <= gap <= z.numel() / 2 + 1e-12


@pytest.mark.parametrize("kind", [LossKind.HINGE, LossKind.PLAIN_HINGE])
def test_rows_beyond_the_margin_have_no_residual(kind: LossKind) -> None:
    z, y = torch.tensor([[1.0, -1.0], [-7.0, 3.0]], dtype=torch.float64), torch.tensor([0, 1])
    assert not loss_of(kind).residual(z, y).any()
    assert loss_of(kind).value(z, y) == 0.0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(LossKind.SOFTMAX, 2e4), (LossKind.OVR, 2e4), (LossKind.HINGE, 2e4), (LossKind.PLAIN_HINGE, 2e4)],
)
def test_huge_logits_overflow_nothing(kind: LossKind, expected: float) -> None:
    loss, z = loss_of(kind), torch.tensor([[1e4, -1e4], [-1e4, 1e4]], dtype=torch.float64)
    y = torch.tensor([0, 0])
    assert loss.value(z, y) == pytest.approx(expected, abs=2)
    assert loss.residual(z, y).tolist() == [[0.0, 0.0], [-1.0, 1.0]]
    for size in (1e4, 1e300):
        assert loss.hessian(z / 1e4 * size, y)(z).isfinite().all()
        assert loss.probabilities(z / 1e4 * size).tolist() == [[1.0, 0.0], [0.0, 1.0]]


@every_loss
@settings(deadline=None, max_examples=40)
@given(logits=logit_rows)
def test_probabilities_sum_to_one_and_order_the_classes_as_the_logits_do(kind: LossKind, logits: np.ndarray) -> None:
    p = loss_of(kind).probabilities(torch.tensor(logits)).numpy()
    assert np.all(p >= 0)
    assert p.sum(axis=1) == pytest.approx(1.0, abs=1e-14)
    for row, probabilities in zip(logits, p, strict=True):
        assert np.all(np.diff(probabilities[np.argsort(row)]) >= 0)


@settings(deadline=None)
@given(logits=logit_rows, targets=logit_rows, direction=logit_rows)
def test_real_valued_targets_take_the_place_of_the_one_hot_class(
    logits: np.ndarray, targets: np.ndarray, direction: np.ndarray
) -> None:
    loss, z, y = loss_of(LossKind.SQUARED, real_valued=True), torch.tensor(logits), torch.tensor(targets)
    assert isinstance(loss, Regression)
    assert loss.value(z, y) == pytest.approx(float(((logits - targets) ** 2).sum()) / 2, rel=1e-13)
    assert loss.residual(z, y).tolist() == (logits - targets).tolist()
    assert loss.hessian(z, y)(torch.tensor(direction)).tolist() == direction.tolist()
    assert loss.probabilities(z).tolist() == logits.tolist()


def test_a_temperature_divides_the_scores_before_the_softmax() -> None:
    z = torch.tensor([[0.1, 0.7, 0.2]], dtype=torch.float64)
    for temperature, expected in ((None, 0.2), (0.05, 0.05)):
        found = loss_of(LossKind.SQUARED, temperature=temperature).probabilities(z)
        torch.testing.assert_close(found, torch.softmax(z / expected, dim=1), rtol=1e-15, atol=0)


def test_one_vs_rest_answers_when_every_class_is_all_but_ruled_out() -> None:
    """All sigmoids are 0 in float64; their ratios are not."""
    p = OneVsRest().probabilities(torch.tensor([[-1000.0, -1001.0]], dtype=torch.float64))
    assert p[0].tolist() == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))], rel=1e-12)
