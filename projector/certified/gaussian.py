"""Gaussian differential privacy (GDP) and its conversion to (epsilon, delta).

A publication is mu-GDP when distinguishing the two neighbours that it may come from is at least as hard as
distinguishing N(0, 1) from N(mu, 1) by one draw (Dong, Roth and Su, "Gaussian Differential Privacy", JRSS B 2022;
theorems are numbered as in arXiv:1905.02383). Adding noise of standard deviation sigma to values that lie at most Delta
apart, in the Euclidean norm, is Delta/sigma-GDP (Theorem 2.7). So is everything computed from the result. Publications
of mu_1, mu_2, …, each chosen after seeing the earlier ones, compose to sqrt(mu_1^2 + mu_2^2 + …)-GDP (Corollary 3.3),
which is exact for Gaussian noise.
"""

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr

from projector.errors import PromiseError

#: Bounds of the search for mu.
_SMALLEST_MU, _LARGEST_MU = 1e-12, 1e3


def delta_at(epsilon: float, mu: float) -> float:
    """Return the smallest delta for which mu-GDP is (epsilon, delta)-differential privacy, epsilon >= 0 and mu > 0.

    Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle and Wang, "Improving the Gaussian Mechanism for
    Differential Privacy", ICML 2018, Theorem 8; Dong, Roth and Su, Corollary 2.13).
    """
    one, other = float(log_ndtr(mu / 2 - epsilon / mu)), float(log_ndtr(-mu / 2 - epsilon / mu))
    return math.exp(one) * -math.expm1(min(epsilon + other - one, 0.0))


def largest_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-GDP is (epsilon, delta)-differential privacy.

    sigma = Delta/mu is the noise of Balle and Wang's Algorithm 1. Raises PromiseError if no mu fits.
    """
    if not (0 <= epsilon < math.inf and 0 < delta < 1):
        raise PromiseError(
            f"Epsilon {epsilon:g} with delta {delta:g} is not a valid promise.",
            "Epsilon is at least 0, delta between 0 and 1.",
        )
    if not delta_at(epsilon, _SMALLEST_MU) < delta < delta_at(epsilon, _LARGEST_MU):
        raise PromiseError(f"No noise gives epsilon {epsilon:g} with delta {delta:g}.", "Choose others.")
    log_mu = brentq(
        lambda log_mu: delta_at(epsilon, math.exp(log_mu)) - delta,
        math.log(_SMALLEST_MU), math.log(_LARGEST_MU), xtol=1e-14,
    )  # fmt: skip
    # The root is approximate on either side. Shrinking mu errs towards more noise, never less.
    return math.exp(log_mu) * (1 - 1e-12)


def success(mu: float) -> float:
    """Return Phi(mu/2), the highest success rate at identifying which of two equally likely neighbours was used.

    By the definition of mu-GDP the errors alpha and beta of any rule obey beta >= Phi(Phi^-1(1 - alpha) - mu). The
    error rate (alpha + beta)/2 is smallest where both are Phi(-mu/2).
    """
    return math.exp(float(log_ndtr(mu / 2)))
