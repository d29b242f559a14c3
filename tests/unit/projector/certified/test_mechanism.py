"""Published data: weights within the cap, on the grid, with the noise that the promise requires."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from model_store.datasets.load import load_dataset
from projector import Certificate, ModelSpec, fit, from_arrays
from projector.certified.gaussian import delta_at, largest_mu
from projector.certified.mechanism import calibrate, mechanism_for, published, radius, shown
from projector.certified.noise import ERROR, rounded_normal
from projector.certified.publication import SECRET_BYTES, Mechanism, Promise, Publication
from projector.errors import PromiseError
from projector.forgetting.optimum import stacked
from projector.forgetting.status import TOLERANCE
from projector.network.losses import loss_of
from projector.network.spec import LossKind

SECRET = bytes(range(SECRET_BYTES))
PROMISE = Promise(epsilon=1.0, delta=1e-4, publications=10_000)


@pytest.fixture
def mechanism() -> Mechanism:
    """For the weights of Cora: 1,433 features, 7 classes, lambda 1e-4."""
    R = radius(loss_of(LossKind.SOFTMAX), 7, 1e-4)
    return calibrate(PROMISE, R, 1_433 * 7, TOLERANCE)


@pytest.mark.parametrize("loss", [LossKind.SOFTMAX, LossKind.OVR, LossKind.HINGE, LossKind.SQUARED])
@pytest.mark.parametrize("regularization", [1e-2, 1e-6])
def test_no_trained_weights_are_longer_than_the_radius(loss: LossKind, regularization: float) -> None:
    graph = load_dataset("synthetic:n=120,d=30,classes=3,seed=2", data_dirs=[])
    model = fit(graph, ModelSpec(loss=loss, regularization=regularization))
    R = radius(loss_of(loss), 3, regularization)
    assert np.linalg.norm(model.weights) <= R
    assert model.certificate is not None
    assert model.certificate.bound <= calibrate(PROMISE, R, model.weights.size, TOLERANCE).cap


def test_the_radius_is_that_of_the_loss_at_zero() -> None:
    at_zero = {
        LossKind.SOFTMAX: math.log(7), LossKind.OVR: 7 * math.log(2), LossKind.HINGE: 3.5, LossKind.SQUARED: 0.5,
    }  # fmt: skip
    for loss, value in at_zero.items():
        assert radius(loss_of(loss), 7, 1e-4) == pytest.approx(math.sqrt(2 * value / 1e-4), rel=1e-14)


def test_the_radius_of_real_valued_targets_needs_a_declared_bound() -> None:
    loss = loss_of(LossKind.SQUARED, real_valued=True)
    for undeclared in (None, 0.0, math.inf, math.nan):
        with pytest.raises(PromiseError, match="depends on the real-valued targets"):
            radius(loss, 2, 1e-2, undeclared)
    random = np.random.default_rng(0)
    targets = random.normal(size=(60, 2))
    targets *= 3.0 / np.linalg.norm(targets, axis=1, keepdims=True)
    graph = from_arrays(np.empty((2, 0), dtype=np.int64), np.abs(random.normal(size=(60, 2))) * targets, targets)
    model = fit(graph, ModelSpec(loss=LossKind.SQUARED, regularization=1e-2))
    assert np.linalg.norm(model.weights) <= radius(loss, 2, 1e-2, 3.0) == pytest.approx(30.0)


@given(
    epsilon=st.floats(0.01, 5.0),
    delta=st.floats(-6.0, -1.0).map(lambda exponent: 10.0**exponent),
    publications=st.integers(1, 1_000_000),
    weights=st.integers(1, 1_000_000),
    tolerance=st.floats(1e-9, 1e-6),
    R=st.floats(1e-3, 1e5),
)
@settings(deadline=None)
def test_all_publications_together_keep_the_promise(
    epsilon: float, delta: float, publications: int, weights: int, tolerance: float, R: float
) -> None:
    """With the drawn noise, and at most a thousandth more than the minimum."""
    promise = Promise(epsilon, delta, publications)
    drawn = (1 + math.exp(epsilon)) * publications * weights * ERROR
    assume(drawn < delta)
    made = calibrate(promise, R, weights, tolerance)
    assert made.mu * math.sqrt(publications) <= made.budget
    assert delta_at(epsilon, made.mu * math.sqrt(publications)) + drawn <= delta * (1 + 1e-9)
    assert made.cap >= tolerance * (R + made.cap) * (1 - 1e-12)
    assert made.sensitivity >= 2 * made.cap + made.step * math.sqrt(weights)
    least = 2 * made.cap * math.sqrt(publications) / made.budget
    assert least <= made.sigma <= 1.002 * least


@given(seed=st.integers(0, 2**32), size=st.floats(0.0, 1.0))
@settings(deadline=None, max_examples=30)
def test_rounded_weights_of_two_services_lie_within_the_sensitivity(seed: int, size: float) -> None:
    """Both at the cap, on opposite sides of an optimum as far out as the radius allows."""
    rng = np.random.default_rng(seed)
    R = radius(loss_of(LossKind.SOFTMAX), 3, 1e-4)
    made = calibrate(PROMISE, R, 60, TOLERANCE)
    best, aside = (rng.standard_normal((20, 3)) for _ in range(2))
    best *= R * size / np.linalg.norm(best)
    aside *= made.cap / np.linalg.norm(aside)
    certificate = Certificate(made.cap, None)
    one, other = (
        published(made, torch.from_numpy(W), certificate, SECRET, 1).numpy() for W in (best + aside, best - aside)
    )
    assert np.linalg.norm(one - other) <= made.sensitivity * (1 + 1e-6)


def test_what_is_published_is_a_sum_on_the_grid(mechanism: Mechanism) -> None:
    W = torch.from_numpy(np.random.default_rng(0).standard_normal((1_433, 7)))
    found = published(mechanism, W, Certificate(0.0, 0.0), SECRET, 5)
    steps = np.rint(W.numpy().ravel() / mechanism.step).astype(np.int64)
    steps += rounded_normal(SECRET, 5, W.numel(), mechanism.bits)
    assert found.shape == W.shape
    assert np.array_equal(found.numpy().ravel(), steps * mechanism.step)


def test_the_grid_is_as_coarse_as_a_thousandth_of_the_sensitivity_allows(mechanism: Mechanism) -> None:
    share = mechanism.step * math.sqrt(mechanism.weights) / mechanism.sensitivity
    assert 2.0**-11 < share <= 2.0**-10 * (1 + 1e-9)


def test_the_noise_has_the_deviation_that_was_calibrated(mechanism: Mechanism) -> None:
    zeros = torch.zeros((1_433, 7), dtype=torch.float64)
    draws = [published(mechanism, zeros, Certificate(0.0, 0.0), SECRET, version).numpy() for version in range(20)]
    assert np.std(draws) == pytest.approx(mechanism.sigma, rel=0.01)


def test_a_version_is_published_the_same_again_and_no_other_is(mechanism: Mechanism) -> None:
    W, certificate = torch.ones((1_433, 7), dtype=torch.float64), Certificate(0.0, 0.0)
    first, again, later = (published(mechanism, W, certificate, SECRET, version) for version in (4, 4, 5))
    assert torch.equal(first, again)
    assert float((first - later).abs().median()) > mechanism.sigma / 2


def test_weights_of_features_and_of_labels_are_published_in_their_places() -> None:
    ring = np.stack([np.arange(60), np.roll(np.arange(60), 1)])
    features = np.random.default_rng(0).normal(size=(60, 5))
    graph = from_arrays(np.hstack([ring, ring[::-1]]), features, np.arange(60) % 3)
    state = fit(graph, ModelSpec(label_hops=2))._held.state
    mechanism = mechanism_for(PROMISE, state, loss_of(LossKind.SOFTMAX), 1e-4, TOLERANCE)
    public = shown(Publication(PROMISE, mechanism, SECRET), state, Certificate(0.0, 0.0))
    assert public.labels is not None
    assert [span.W.shape for span in public.spans] == [span.W.shape for span in state.spans]
    assert torch.equal(stacked(public), published(mechanism, stacked(state), Certificate(0.0, 0.0), SECRET, 0))


def test_weights_beyond_the_cap_are_not_published(mechanism: Mechanism) -> None:
    W = torch.zeros((1_433, 7), dtype=torch.float64)
    published(mechanism, W, Certificate(mechanism.cap, None), SECRET, 1)
    for bound in (mechanism.cap * (1 + 1e-12), math.inf, math.nan):
        with pytest.raises(PromiseError, match="from those of retraining"):
            published(mechanism, W, Certificate(bound, None), SECRET, 1)


def test_noise_for_another_model_is_not_used(mechanism: Mechanism) -> None:
    with pytest.raises(PromiseError, match="10031 weights and these are 21"):
        published(mechanism, torch.zeros((7, 3), dtype=torch.float64), Certificate(0.0, 0.0), SECRET, 1)


def test_an_objective_that_bounds_no_distance_is_refused() -> None:
    with pytest.raises(PromiseError, match="plain hinge"):
        radius(loss_of(LossKind.PLAIN_HINGE), 3, 1e-4)
    with pytest.raises(PromiseError, match="positive lambda"):
        radius(loss_of(LossKind.SOFTMAX), 3, 0.0)


@pytest.mark.parametrize(
    ("promise", "weights", "tolerance", "reason"),
    [
        (replace(PROMISE, delta=1e-13), 10_031, TOLERANCE, "the noise of 10000 publications is drawn to"),
        (replace(PROMISE, epsilon=90.0), 10_031, TOLERANCE, "is drawn to"),
        (replace(PROMISE, epsilon=math.nan), 10_031, TOLERANCE, "is not a valid promise"),
        (replace(PROMISE, epsilon=-1.0), 10_031, TOLERANCE, "is not a valid promise"),
        (replace(PROMISE, delta=1.5), 10_031, TOLERANCE, "is not a valid promise"),
        (replace(PROMISE, publications=0), 10_031, TOLERANCE, "at least one publication"),
        (PROMISE, 0, TOLERANCE, "at least one publication"),
        (replace(PROMISE, publications=1), 10_000_000, 1e-12, "too small for weights"),
    ],
)
def test_what_cannot_hold_is_refused(promise: Promise, weights: int, tolerance: float, reason: str) -> None:
    with pytest.raises(PromiseError, match=f"(?i){reason}"):
        calibrate(promise, 200.0, weights, tolerance)


def test_one_publication_needs_the_noise_of_the_analytic_mechanism() -> None:
    made = calibrate(replace(PROMISE, publications=1), 200.0, 10_031, TOLERANCE)
    assert made.sigma == pytest.approx(made.sensitivity / largest_mu(1.0, 1e-4), rel=1e-9)
    assert made.sigma == pytest.approx(3.186 * 2 * TOLERANCE * 200.0, rel=2e-3)
