"""Conversions between mu, (epsilon, delta) and an observer's success, against published values and fifty digits."""

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.certified.gaussian import delta_at, largest_mu, success
from projector.errors import PromiseError

EPSILONS = st.floats(0.01, 20.0)
DELTAS = st.floats(-12.0, -1.0).map(lambda exponent: 10.0**exponent)
MUS = st.floats(0.01, 8.0)


def precise_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """Theorem 8 of Balle and Wang with Delta/sigma = mu, in fifty digits."""
    with mpmath.workdps(50):
        epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def test_sigma_is_that_of_the_authors_of_the_analytic_mechanism() -> None:
    """Their program, to its tolerance of 1e-12 in delta, for epsilon 1, delta 1e-5 and sensitivity 1."""
    assert 1 / largest_mu(1.0, 1e-5) == pytest.approx(3.730631634944469, rel=1e-9)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.35, 1.34), (1.78, 8.68)])
def test_mu_is_that_of_deep_learning_with_gaussian_differential_privacy(mu: float, epsilon: float) -> None:
    """Bu, Dong, Long and Su (2020), Figure 4, at delta 1e-5; mu is printed to two decimals."""
    assert largest_mu(epsilon - 0.005, 1e-5) - 0.005 <= mu <= largest_mu(epsilon + 0.005, 1e-5) + 0.005


@given(epsilon=EPSILONS, mu=MUS)
@settings(deadline=None)
def test_delta_is_that_of_the_formula(epsilon: float, mu: float) -> None:
    expected = precise_delta(epsilon, mu)
    if expected > 1e-250:
        assert delta_at(epsilon, mu) == pytest.approx(float(expected), rel=1e-8)


@given(epsilon=EPSILONS, delta=DELTAS)
@settings(deadline=None)
def test_no_promise_is_understated(epsilon: float, delta: float) -> None:
    """The computed mu keeps delta, and slightly less noise would not."""
    mu = largest_mu(epsilon, delta)
    assert precise_delta(epsilon, mu) <= delta * (1 + 1e-9)
    assert precise_delta(epsilon, mu * (1 + 1e-8)) > delta * (1 - 1e-9)


def test_an_observer_of_what_is_promised_is_right_in_little_more_than_half_of_the_cases() -> None:
    assert 0.562 < success(largest_mu(1.0, 1e-4)) < 0.563
    assert 0.504 < success(largest_mu(0.1, 1e-6)) < 0.506


@given(mu=MUS, alpha=st.floats(1e-6, 1 - 1e-6))
@settings(deadline=None)
def test_no_rule_is_right_more_often(mu: float, alpha: float) -> None:
    """On the error curve of mu, and by the total variation, which is delta at epsilon 0."""
    with mpmath.workdps(30):
        beta = mpmath.ncdf(-mu - math.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(alpha) - 1))
    assert 1 - (alpha + float(beta)) / 2 <= success(mu) * (1 + 1e-12)
    assert success(mu) == pytest.approx(0.5 + delta_at(0.0, mu) / 2, rel=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(-1.0, 1e-4), (math.nan, 1e-4), (math.inf, 1e-4), (1.0, 0.0), (1.0, 1.0), (1.0, math.nan), (0.0, 1e-300)],
)
def test_what_no_noise_can_keep_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(PromiseError):
        largest_mu(epsilon, delta)
