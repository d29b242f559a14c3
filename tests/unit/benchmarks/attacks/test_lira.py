"""U-LiRA: its likelihood ratio, its figures and intervals, and that it finds a leak only if there is one."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest
from scipy import stats

from benchmarks.attacks.lira import CHANCE, Attackers, Estimate, Ranked, attack
from benchmarks.baselines.lethe import Held, Lethe
from benchmarks.baselines.linear import logits, probabilities
from benchmarks.baselines.protocol import Array, Baseline, Nodes
from benchmarks.baselines.ridge import ClosedFormSgc, Editing, GraphEditor
from benchmarks.paper.forgetting.closeness import retraining_of
from benchmarks.paper.inference.lira import Shadows, lira, shadows_of
from benchmarks.paper.units import Unit, graph_of
from model_store.datasets.load import load_dataset
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.spec import LossKind

pytestmark = pytest.mark.ci

#: As many features as nodes, so that training data is memorised.
SMALL = "synthetic:n=120,d=150,classes=2,seed=1"


def test_scores_are_the_ratio_of_two_normal_densities_of_each_target() -> None:
    random = np.random.default_rng(0)
    answers, unlearned = random.normal(size=(12, 5)), np.arange(60).reshape(12, 5) % 3 == 0
    other = random.normal(size=(3, 5))
    found = Attackers.learned(answers, unlearned).scores(other)
    for target in range(5):
        densities = [
            stats.norm(rows.mean(), rows.std(ddof=1)).logpdf(other[:, target])
            for rows in (answers[unlearned[:, target], target], answers[~unlearned[:, target], target])
        ]
        np.testing.assert_allclose(found[:, target], densities[0] - densities[1], rtol=1e-12)


@pytest.mark.parametrize("digits", [0, 8])
def test_figures_are_those_of_brute_force_with_and_without_ties(digits: int) -> None:
    random = np.random.default_rng(3)
    unlearned = random.random((40, 30)) < 0.5
    scores = (random.normal(size=(40, 30)) + unlearned).round(digits)
    weights = random.integers(0, 4, size=scores.shape).astype(np.float64)
    each = np.stack([np.ones_like(weights), weights, np.zeros_like(weights)])
    found = Ranked.of(scores, unlearned).figures(each)
    expected = [brute_force(scores, unlearned, one) for one in each[:2]]
    np.testing.assert_allclose(found, [*expected, [np.nan] * len(CHANCE)])


def brute_force(scores: Array, unlearned: np.ndarray, weights: Array) -> list[float]:
    times = weights.astype(np.int64)
    positive, negative = (np.repeat(scores[kind], times[kind]) for kind in (unlearned, ~unlearned))
    pairs = positive[:, None] - negative[None, :]
    area = float((pairs > 0).mean() + (pairs == 0).mean() / 2)
    balanced = float(((positive > 0).mean() + (negative <= 0).mean()) / 2)
    thresholds = np.append(np.unique(scores), np.inf)
    rates = [((positive >= each).mean(), (negative >= each).mean()) for each in thresholds]
    return [area, balanced, *(max(true for true, false in rates if false <= level) for level in (0.001, 0.01))]


@dataclass(frozen=True)
class KeepsAColumn:
    """Lethe with repair that keeps the old weights of one class."""

    spec: ModelSpec

    def fit(self, graph: Graph) -> "KeptColumn":
        return KeptColumn(self.spec, Lethe(self.spec, repair=True).fit(graph))


@dataclass(frozen=True)
class KeptColumn:
    spec: ModelSpec
    held: Held

    @property
    def weights(self) -> Array:
        return self.held.weights

    def predict(self) -> Array:
        return self.held.predict()

    def predict_on(self, graph: Graph) -> Array:
        return probabilities(logits(graph, self.spec, self.weights), self.spec.loss)

    def unlearn(self, nodes: Nodes) -> "Leaking":
        left = self.held.unlearn(nodes)
        weights = left.weights.copy()
        weights[..., 0] = self.weights[..., 0]
        return Leaking(self.spec, left, weights)


@dataclass(frozen=True)
class Leaking(KeptColumn):
    kept: Array

    @property
    def weights(self) -> Array:
        return self.kept


@lru_cache
def shadows(loss: LossKind) -> tuple[ModelSpec, Shadows]:
    spec = ModelSpec(loss=loss, regularization=1e-4)
    return spec, shadows_of(load_dataset(SMALL, data_dirs=(), seed=0), spec, 0, 16, 0.4)


def area(models: Shadows, baseline: Baseline) -> tuple[Estimate, Estimate]:
    unlearned = models.unlearned(lambda number: baseline)
    compared = np.where(models.members, unlearned, models.retrained)
    return attack(compared, models.members)["auc"], attack(unlearned, models.members)["auc"]


@pytest.mark.parametrize("loss", [LossKind.OVR, LossKind.SOFTMAX])
def test_it_finds_a_class_whose_weights_stayed_and_nothing_after_projection_and_repair(
    loss: LossKind,
) -> None:
    spec, models = shadows(loss)
    leaks, honest = area(models, KeepsAColumn(spec)), area(models, Lethe(spec, repair=True))
    for leak, none in zip(leaks, honest, strict=True):
        assert none.low <= 0.5 <= none.high
        assert leak.low > 0.5
        assert leak.low > none.value


@pytest.mark.parametrize("method", ["closed-form sgc", "graph editor"])
def test_ridge_regressions_forget_exactly_and_are_compared_with_their_own_retraining(method: str) -> None:
    spec = ModelSpec(loss=LossKind.SQUARED, regularization=1e-2)
    graph = load_dataset("synthetic:n=60,d=12,classes=3,seed=1", data_dirs=(), seed=0)
    own = shadows_of(graph, spec, 0, 8, 0.4, retraining_of(method))
    baseline = ClosedFormSgc(spec) if method == "closed-form sgc" else GraphEditor(spec, Editing.CLOSED_FORM)
    np.testing.assert_allclose(own.unlearned(lambda number: baseline), own.retrained, atol=1e-8)
    other = shadows_of(graph, spec, 0, 8, 0.4)
    assert np.abs(other.retrained - own.retrained).max() > 1e-2 or method == "closed-form sgc"


def test_slow_graphs_are_attacked_with_one_loss_only() -> None:
    graph = graph_of(Unit("lira", "synthetic:n=60,d=12,classes=3,seed=1", "retraining", 0))
    for dataset, losses in (("citeseer", {"ovr", "softmax"}), ("coauthor_cs", {"ovr"})):
        cases = dict(lira(graph, Unit("lira", dataset, "retraining", 0)))
        assert {case.split(",")[0] for case in cases} == losses
        assert all(figures["models"] == 8 for figures in cases.values())
