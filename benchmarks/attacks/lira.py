"""U-LiRA: decides whether a model has unlearned a node or never trained on it, with one attacker for each node.

Hayes, Shumailov, Triantafillou, Khalifa and Papernot, "Inexact unlearning needs more careful evaluations to avoid a
false sense of privacy" (2024), the algorithm U-LiRA, after Carlini et al., "Membership inference attacks from first
principles" (2022), the online attack with a normal distribution for each example.

The attacker reads log p / (1 - p) from shadow models, where p is the probability of the target's true class. One normal
distribution is fitted to models that were trained on the target and then unlearned it, another to models that never had
it. The score of another model's answer is the logarithm of the ratio of the two densities. The attacker is assumed to
know the target, its features, edges and true class, the other nodes, the training settings and the unlearning method.
It may train any number of models. From the attacked model it has one answer for each target.

Attackers are judged on models that they did not learn from: those that learned on one half of the models are tested on
the other half, and figures are means of both directions. Scores are compared within a half. Across halves, or when one
model is left out at a time, a model's own answer would move the distributions that score the others, and guessing would
come out below chance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.attacks.black_box import BlackBox
from benchmarks.baselines.protocol import Array, Nodes
from projector import ProjectorError

Mask = NDArray[np.bool_]

#: Figures of an attacker that guesses: area under the ROC curve, balanced accuracy, and true-positive rates at
#: false-positive rates of 0.1 and 1 %.
CHANCE: Mapping[str, float] = {"auc": 0.5, "balanced": 0.5, "tpr_0.001": 0.001, "tpr_0.01": 0.01}
_LEVELS = (0.001, 0.01)
#: Lower limit of a probability, for answers rounded to 0.
_LEAST = 1e-12
#: Lower limit of a fitted standard deviation, so that a density exists when all answers are equal.
_LEAST_DEVIATION = 1e-6
_RESAMPLED, _COVERAGE = 1_000, 0.95
#: Number of pairs in the bootstrap draws computed together: some ten megabytes an array.
_PAIRS_AT_ONCE = 1_000_000


class AttackError(ProjectorError):
    """The attack cannot run on the given models."""


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


def confidence(box: BlackBox, targets: Nodes, labels: Nodes) -> Array:
    """Return log p / (1 - p) of the true classes `labels` (m,) of `targets` (m,), natural logarithm, (m,) float64.

    1 - p is the sum of the other classes' probabilities, which stays accurate when p is close to 1.
    """
    answers = box(targets).copy()
    place = np.arange(targets.size), labels
    right = answers[place]
    answers[place] = 0.0
    return np.asarray(np.log(np.maximum(right, _LEAST)) - np.log(np.maximum(answers.sum(axis=1), _LEAST)))


@dataclass(frozen=True, eq=False)
class Attackers:
    """One attacker for each target: normal distributions of confidences of models that unlearned it or never had it."""

    #: Means and standard deviations, (2, T): first unlearned, then never trained on.
    means: Array
    deviations: Array

    @classmethod
    def learned(cls, confidences: Array, unlearned: Mask) -> "Attackers":
        """Fit to the confidences (K, T) of K shadow models, given which of them unlearned the target, (K, T).

        Raises AttackError if a target has fewer than two models of either kind.
        """
        moments = []
        for kind in (unlearned, ~unlearned):
            count = kind.sum(axis=0)
            if (count < 2).any():
                raise AttackError("A target has fewer than two shadow models of a kind.", "Train more shadow models.")
            mean = np.where(kind, confidences, 0.0).sum(axis=0) / count
            squares = np.where(kind, (confidences - mean) ** 2, 0.0).sum(axis=0)
            moments.append((mean, np.maximum(np.sqrt(squares / (count - 1)), _LEAST_DEVIATION)))
        return cls(np.stack([mean for mean, _ in moments]), np.stack([deviation for _, deviation in moments]))

    def scores(self, confidences: Array) -> Array:
        """Return log N(c; unlearned) - log N(c; never trained on) for confidences c (..., T) of other models."""
        away = [(confidences - mean) / deviation for mean, deviation in zip(self.means, self.deviations, strict=True)]
        return np.asarray((away[1] ** 2 - away[0] ** 2) / 2 + np.log(self.deviations[1] / self.deviations[0]))


def attack(confidences: Array, unlearned: Mask, seed: int = 0) -> dict[str, Estimate]:
    """Estimate how well attackers distinguish the two kinds of models, for each figure of `CHANCE`.

    `confidences` (K, T) are those of K models for T targets. `unlearned` (K, T) marks the models that have unlearned
    the target; the others never had it. Intervals come from the cluster bootstrap over targets and over models. Both
    are drawn with replacement, and a pair counts as often as its target times its model was drawn (Owen's pigeonhole
    bootstrap, 2007, which is wide rather than narrow). They do not cover the choice of shadow models. Raises
    AttackError if half of the models has fewer than two models of a kind.
    """
    halves = np.array_split(np.arange(len(confidences)), 2)
    ranked = [
        Ranked.of(Attackers.learned(confidences[other], unlearned[other]).scores(confidences[half]), unlearned[half])
        for half, other in (halves, halves[::-1])
    ]
    found = np.mean([each.figures(np.ones((1, *each.shape)))[0] for each in ranked], axis=0)
    tail = (1 - _COVERAGE) / 2
    low, high = np.quantile(_resampled(ranked, np.random.default_rng(seed)), (tail, 1 - tail), axis=0)
    return {name: Estimate(*map(float, each)) for name, *each in zip(CHANCE, found, low, high, strict=True)}


@dataclass(frozen=True, eq=False)
class Ranked:
    """Scores (K, T) in descending order, so that the figures for many weightings take one pass each."""

    shape: tuple[int, int]
    order: Nodes
    #: In that order: which models have unlearned, and the position of the last of equal scores.
    unlearned: Mask
    ends: Nodes
    #: Number of `ends` with a score above 0, where unlearned is the likelier.
    above: int

    @classmethod
    def of(cls, scores: Array, unlearned: Mask) -> "Ranked":
        """Rank scores (K, T), larger for models that seem to have unlearned, with the true marks (K, T)."""
        models, targets = scores.shape
        order = np.argsort(-scores, axis=None, kind="stable")
        sorted_scores = scores.ravel()[order]
        ends = np.append(np.flatnonzero(np.diff(sorted_scores)), order.size - 1)
        above = int((sorted_scores[ends] > 0).sum())
        return cls((models, targets), order, unlearned.ravel()[order], ends, above)

    def figures(self, weights: Array) -> Array:
        """Return the figures of `CHANCE`, (B, 4), counting each pair `weights` (B, K, T) times. Equal scores share a
        threshold.

        NaN if no pair of a kind counts.
        """
        sorted_weights = weights.reshape(len(weights), -1)[:, self.order]
        rates = []
        for kind in (self.unlearned, ~self.unlearned):
            counted = np.cumsum(sorted_weights * kind, axis=1)[:, self.ends]
            whole = np.where(counted[:, -1:] > 0, counted[:, -1:], np.nan)
            rates.append(np.concatenate((np.zeros((len(weights), 1)), counted), axis=1) / whole)
        true, false = rates
        area = np.sum(np.diff(false, axis=1) * (true[:, 1:] + true[:, :-1]) / 2, axis=1)
        balanced = (true[:, self.above] + 1 - false[:, self.above]) / 2
        # A level that is met exactly may be a rounding above it. Rates rise, so the last true rate is the largest.
        last = [(false[:, 1:] <= level + 1e-12).sum(axis=1) for level in _LEVELS]
        at = [np.take_along_axis(true, each[:, None], axis=1)[:, 0] for each in last]
        return np.stack([area, balanced, *at], axis=1)


def _resampled(ranked: Sequence[Ranked], random: np.random.Generator) -> Array:
    """Return figures (`_RESAMPLED`, 4), with targets drawn once for all halves and models drawn for each half.

    Drops a draw if a half lacks a kind.
    """
    targets = ranked[0].shape[1]
    at_once = max(1, _PAIRS_AT_ONCE // (ranked[0].shape[0] * targets))
    found: list[Array] = []
    while sum(map(len, found)) < _RESAMPLED:
        times = _multiplicities(at_once, targets, random)[:, None, :]
        draws = [each.figures(_multiplicities(at_once, each.shape[0], random)[:, :, None] * times) for each in ranked]
        mean = np.mean(draws, axis=0)
        found.append(mean[~np.isnan(mean).any(axis=1)])
    return np.concatenate(found)[:_RESAMPLED]


def _multiplicities(rows: int, size: int, random: np.random.Generator) -> Array:
    """Return how often each of `size` items occurs in `size` draws with replacement, (rows, size) float64."""
    return random.multinomial(size, np.full(size, 1 / size), size=rows).astype(np.float64)
