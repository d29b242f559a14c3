"""U-LiRA: its likelihood ratio, its figures and intervals, and that it finds a leak and nothing where there is none."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.attacks.black_box import recorded
from benchmarks.attacks.lira import CHANCE, AttackError, Attackers, Estimate, Ranked, attack, confidence
from benchmarks.baselines.lethe import Held, Lethe
from benchmarks.baselines.linear import logits, probabilities
from benchmarks.baselines.protocol import Array, Baseline, BaselineError, Nodes
from benchmarks.baselines.retraining import Retraining
from benchmarks.paper.inference.lira import NEVER_THERE_QUESTION, RETRAINED_QUESTION, Shadows, lira, shadows_of
from benchmarks.paper.units import Unit
from benchmarks.report.lira import sections
from benchmarks.report.page import page
from benchmarks.report.results import Results
from model_store.datasets.load import load_dataset
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.spec import LossKind
from tests.support.results import unit

QUESTIONS = (RETRAINED_QUESTION, NEVER_THERE_QUESTION)
#: As many features as nodes: what is trained on is remembered.
SMALL = "synthetic:n=120,d=150,classes=2,seed=1"


def test_confidence_is_the_logarithm_of_the_odds_also_where_it_is_certain() -> None:
    answers = np.array([[0.2, 0.5, 0.3], [1e-17, 1 - 1e-17, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    box = recorded(answers)
    found = confidence(box, np.array([0, 1, 2, 3]), np.array([1, 1, 0, 0]))
    np.testing.assert_allclose(found, [0.0, 12 * np.log(10), -12 * np.log(10), 12 * np.log(10)], atol=1e-12)
    assert confidence(box, np.array([0]), np.array([0])) == pytest.approx(np.log(0.2 / 0.8))
    assert answers[0, 1] == 0.5


def test_scores_are_the_ratio_of_two_normal_densities_of_each_target() -> None:
    random = np.random.default_rng(0)
    told, unlearned = random.normal(size=(12, 5)), np.arange(60).reshape(12, 5) % 3 == 0
    other = random.normal(size=(3, 5))
    found = Attackers.learned(told, unlearned).scores(other)
    for target in range(5):
        densities = [
            stats.norm(rows.mean(), rows.std(ddof=1)).logpdf(other[:, target])
            for rows in (told[unlearned[:, target], target], told[~unlearned[:, target], target])
        ]
        np.testing.assert_allclose(found[:, target], densities[0] - densities[1], rtol=1e-12)


def test_answers_that_are_all_the_same_say_nothing() -> None:
    told, unlearned = np.ones((8, 4)), np.arange(32).reshape(8, 4) % 8 < 4
    assert not Attackers.learned(told, unlearned).scores(told).any()
    assert attack(told, unlearned)["auc"] == Estimate(0.5, 0.5, 0.5)
    assert attack(told, unlearned)["tpr_0.01"] == Estimate(0.0, 0.0, 0.0)


def test_a_distribution_needs_two_models() -> None:
    unlearned = np.zeros((6, 1), dtype=np.bool_)
    unlearned[0] = True
    with pytest.raises(AttackError, match="fewer than two"):
        Attackers.learned(np.zeros((6, 1)), unlearned)


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
    told = [((positive >= each).mean(), (negative >= each).mean()) for each in thresholds]
    return [area, balanced, *(max(true for true, false in told if false <= level) for level in (0.001, 0.01))]


def test_intervals_hold_chance_where_both_kinds_are_alike_and_not_where_they_differ() -> None:
    held = dict.fromkeys(CHANCE, 0)
    for seed in range(10):
        random = np.random.default_rng(seed)
        unlearned = np.concatenate([[member, ~member] for member in random.random((8, 40)) < 0.5])
        # Models differ as wholes, and targets do.
        told = random.normal(size=(16, 40)) + random.normal(size=(16, 1)) + random.normal(size=40)
        for figure, found in attack(told, unlearned, seed).items():
            held[figure] += found.low <= CHANCE[figure] <= found.high
    assert min(held.values()) >= 9
    assert attack(told + 2 * unlearned, unlearned)["auc"].low > 0.5


@dataclass(frozen=True)
class KeepsAColumn:
    """Lethe with repair, but that one class' weights are those of before."""

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


def area(told: Shadows, baseline: Baseline) -> tuple[Estimate, Estimate]:
    unlearned = told.unlearned(lambda number: baseline)
    compared = np.where(told.members, unlearned, told.retrained)
    return attack(compared, told.members)["auc"], attack(unlearned, told.members)["auc"]


@pytest.mark.parametrize("loss", [LossKind.OVR, pytest.param(LossKind.SOFTMAX, marks=pytest.mark.slow)])
def test_it_finds_a_class_whose_weights_stayed_and_nothing_after_projection_and_repair(
    loss: LossKind,
) -> None:
    spec, told = shadows(loss)
    leaks, honest = area(told, KeepsAColumn(spec)), area(told, Lethe(spec, repair=True))
    for leak, none in zip(leaks, honest, strict=True):
        assert none.low <= 0.5 <= none.high
        assert leak.low > 0.5
        assert leak.low > none.value


def test_models_that_retrain_answer_as_those_retrained_and_half_of_them_unlearn_each_target() -> None:
    spec, told = shadows(LossKind.OVR)
    np.testing.assert_allclose(told.unlearned(lambda number: Retraining(spec)), told.retrained, rtol=1e-6, atol=1e-6)
    assert (told.members.sum(axis=0) == 8).all()
    assert (told.members.sum(axis=1) == told.targets.size // 2).all()
    assert not np.isin(told.targets, np.concatenate(told.training)).any()


def test_an_experiment_has_both_losses_and_questions_where_the_method_has_them() -> None:
    graph = load_dataset("synthetic:n=60,d=12,classes=3,seed=1", data_dirs=(), seed=0)
    cases: dict[str, Any] = dict(lira(graph, Unit("lira", "synthetic", "influence+", 0)))
    assert list(cases) == [f"ovr, {question}" for question in QUESTIONS]
    both = [case for case, _ in lira(graph, Unit("lira", "synthetic", "lethe, projection", 0))]
    assert both == [f"{loss}, {question}" for loss in ("ovr", "softmax") for question in QUESTIONS]
    for figures in cases.values():
        assert (figures["models"], figures["targets"], figures["unlearned_at_once"]) == (8, 4, 2)
        for figure in CHANCE:
            low, value, high = (figures[f"{figure}{end}"] for end in ("_low", "", "_high"))
            assert 0 <= low <= high <= 1
            assert 0 <= value <= 1


def test_a_graph_too_small_has_no_targets_and_diffusion_no_answer() -> None:
    spec, told = shadows(LossKind.OVR)
    few = np.zeros(told.graph.nodes, dtype=np.bool_)
    few[:6] = True
    with pytest.raises(BaselineError, match="too few"):
        shadows_of(replace(told.graph, train_mask=few), spec, 0, 16, 0.1)
    with pytest.raises(BaselineError, match="its own graph"):
        told.unlearned(lambda number: Lethe(replace(spec, diffusion=True), repair=False))


def test_the_report_names_each_figure_beside_chance() -> None:
    figures = {f"{figure}{end}": 0.25 for figure in CHANCE for end in ("", "_low", "_high")}
    case = {"models": 64, "targets": 120, **figures}
    made = [
        unit(
            "lira", "retraining", {f"{loss}, {question}": case for loss in ("ovr", "softmax") for question in QUESTIONS}
        ),
        unit("lira", "influence+", {f"ovr, {question}": case for question in QUESTIONS}),
    ]
    (section,) = sections(Results(made))
    ((name, table),) = section.tables
    assert name == "Cora"
    assert [row[0] for row in table.rows] == [
        "retraining; ovr, unlearned or retrained",
        "retraining; softmax, unlearned or retrained",
        "retraining; ovr, unlearned or never there",
        "retraining; softmax, unlearned or never there",
        "influence+; ovr, unlearned or retrained",
        "influence+; ovr, unlearned or never there",
    ]
    assert table.rows[0][1:] == ["25.00 [25.00, 25.00]"] * 4 + ["64", "120"]
    chance = [float(head.rpartition("chance ")[2]) for head in table.head[1:5]]
    assert chance == pytest.approx([100 * each for each in CHANCE.values()])
    assert "U-LiRA" in page(Results(made))
    assert not sections(Results(()))[0].tables
