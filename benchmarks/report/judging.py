"""How results judge a claim.

A claim is judged in every case that was measured (a dataset, a share, a method it names), by a margin that is positive
where it holds. It is reproduced when it holds in all, and refuted by the first in which it does not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import fmean, stdev

from benchmarks.report.results import LETHE, NAMES, RETRAINED, Results, number

#: A channel whose weight fell below this share of what it was is gone; rounding leaves about 1e-15.
GONE = 1e-6
#: Points of accuracy, as a share, that a reader would call a loss.
POINT = 0.01
APPROXIMATE = ("influence+", "fisher+")
_SEEDS = 5


class Verdict(StrEnum):
    """What is known of a claim."""

    REPRODUCED = "reproduced"
    REFUTED = "refuted"
    UNREACHABLE = "not testable here"
    UNMEASURED = "not measured yet"


@dataclass(frozen=True)
class Case:
    """One in which a claim can be looked at."""

    #: Positive where it holds, the more the clearer.
    margin: float
    words: str


@dataclass(frozen=True)
class Claim:
    """Something that the paper says."""

    name: str
    where: str
    text: str
    judge: Callable[[Results], Sequence[Case]] | None
    #: Why ours differs, or what has to be known to read the verdict.
    because: str
    #: The test that shows a few nodes for which the claim is false: FILE::TEST below tests/unit/benchmarks.
    example: str = ""


@dataclass(frozen=True)
class Finding:
    """A claim and what is known of it."""

    claim: Claim
    verdict: Verdict
    words: str


def found(claim: Claim, results: Results) -> Finding:
    """What `results` say of `claim`."""
    if claim.judge is None:
        return Finding(claim, Verdict.UNREACHABLE, "The data cannot be reached here.")
    cases = claim.judge(results)
    if not cases:
        return Finding(claim, Verdict.UNMEASURED, "Nothing was measured yet.")
    failed = [case for case in cases if case.margin <= 0]
    least = min(cases, key=lambda case: case.margin)
    if failed:
        words = f"It fails in {_some(len(failed), len(cases))}. Worst: {least.words}"
        if len(failed) < len(cases):
            words += f" It holds in the others, most clearly: {max(cases, key=lambda case: case.margin).words}"
        return Finding(claim, Verdict.REFUTED, words)
    return Finding(claim, Verdict.REPRODUCED, f"It holds in {_all(len(cases))}. Closest to failing: {least.words}")


def _some(failed: int, count: int) -> str:
    return _all(count) if failed == count else f"{failed} of {count} cases"


def _all(count: int) -> str:
    return "the one case measured" if count == 1 else f"all {count} cases measured"


def channel(methods: Sequence[str], *, gone: bool) -> Callable[[Results], list[Case]]:
    """Whether the injected channel's weight is gone after these methods, or still there."""

    def judge(results: Results) -> list[Case]:
        cases = []
        for dataset in results.datasets("injection"):
            for method in methods:
                for share in results.cases("injection", dataset):
                    key = ("injection", dataset, method, share)
                    before = results.values(*key, "channel_norm_before")
                    after = results.values(*key, "channel_norm_after")
                    if not before:
                        continue
                    left = [last / first for first, last in zip(before, after, strict=True)]
                    margin = GONE - max(left) if gone else min(left) - GONE
                    words = f"{_place(dataset, share)}, {method}: from {number(max(before))} to {number(max(after))}."
                    cases.append(Case(margin, words))
        return cases

    return judge


def compared(
    experiment: str,
    figure: str,
    pairs: Sequence[tuple[str, str]],
    ahead: Callable[[float, float], float],
    cases: Sequence[str] | None = None,
    times: float = 1.0,
    unit: str = "",
) -> Callable[[Results], list[Case]]:
    """Means of one figure for pairs of methods; `ahead` gives the margin of the first over the second."""

    def judge(results: Results) -> list[Case]:
        there = []
        for dataset in results.datasets(experiment):
            for case in results.cases(experiment, dataset) if cases is None else cases:
                for one, other in pairs:
                    # Seeds delete other nodes, so only those that both have compare; accuracies stand alone.
                    these, those = (results.by_seed(experiment, dataset, each, case, figure) for each in (one, other))
                    if experiment != "accuracy":
                        shared = these.keys() & those.keys()
                        these, those = ({seed: each[seed] for seed in shared} for each in (these, those))
                    if these and those:
                        first, second = fmean(these.values()), fmean(those.values())
                        words = (
                            f"{_place(dataset, case)}: {one} {number(times * first)}{unit}, "
                            f"{other} {number(times * second)}{unit}."
                        )
                        there.append(Case(ahead(first, second), words))
        return there

    return judge


def accuracies(
    experiment: str,
    figure: str,
    pairs: Sequence[tuple[str, str]],
    ahead: Callable[[float, float], float],
    cases: Sequence[str] | None = None,
) -> Callable[[Results], list[Case]]:
    """`compared` for a share that is told in percent."""
    return compared(experiment, figure, pairs, ahead, cases, times=100, unit=" %")


def better(first: float, second: float) -> float:
    """By how much the first accuracy is larger."""
    return first - second


def costs(first: float, second: float) -> float:
    """By how much more than a point the first accuracy is smaller."""
    return second - first - POINT


def at_chosen_lambda(results: Results) -> list[Case]:
    """Influence+ and Fisher+ beside retraining, each at the lambda that validation nodes choose for it."""
    cases = []
    for dataset in results.datasets("regularization"):
        chosen = {each: best_lambda(results, dataset, each) for each in (*APPROXIMATE, RETRAINED)}
        after = {
            method: results.mean("regularization", dataset, method, best, "accuracy_after")
            for method, best in chosen.items()
            if best is not None
        }
        for method in APPROXIMATE:
            first, second = after.get(method), after.get(RETRAINED)
            if first is not None and second is not None:
                words = (
                    f"{_place(dataset, 'all')}, 5 %: {method} {number(100 * first)} % at lambda {chosen[method]}, "
                    f"{RETRAINED} {number(100 * second)} % at {chosen[RETRAINED]}."
                )
                cases.append(Case(second - first - POINT, words))
    return cases


def best_lambda(results: Results, dataset: str, method: str) -> str | None:
    """That with the best accuracies of validation nodes before and after, as `choose_regularization` has it."""
    scores = {}
    for case in results.cases("regularization", dataset):
        key = ("regularization", dataset, method, case)
        before, after = results.mean(*key, "validation_before"), results.mean(*key, "validation_after")
        if before is not None and after is not None:
            scores[case] = before + after
    return max(scores, key=lambda case: scores[case]) if scores else None


def smaller(first: float, second: float) -> float:
    """As a share of the second, so that margins of different sizes compare."""
    return (second - first) / second if second else -first


def growing(results: Results) -> list[Case]:
    """Whether the projection is farther from retraining the more is deleted."""
    cases = []
    for dataset in results.datasets("closeness"):
        shares = results.cases("closeness", dataset)
        means = [(share, results.mean("closeness", dataset, LETHE, share, "weights")) for share in shares]
        away = [(share, mean) for share, mean in means if mean is not None]
        for (less, near), (more, far) in pairwise(away):
            words = f"{_place(dataset, less)}: {number(near)}, and {number(far)} at {float(more):.0%}."
            cases.append(Case(smaller(near, far), words))
    return cases


def deviation_with_mlp(results: Results) -> list[Case]:
    """Whether accuracies with an MLP vary more over five seeds than without; of fewer, deviations tell nothing."""
    cases = []
    for dataset in results.datasets("accuracy"):
        plain = results.values("accuracy", dataset, "linear", "all", "accuracy")
        for method in ("+ MLP, 10 % public", "+ MLP, 50 % public"):
            deep = results.values("accuracy", dataset, method, "all", "accuracy")
            # A graph with its own split gives the linear model no deviation at all.
            if len(deep) >= _SEEDS and (len(plain) == 1 or len(plain) >= _SEEDS):
                deviations = stdev(deep), stdev(plain) if len(plain) > 1 else 0.0
                words = f"{NAMES.get(dataset, dataset)}: {100 * deviations[0]:.2f} with {method}, "
                cases.append(Case(deviations[0] - deviations[1], f"{words}{100 * deviations[1]:.2f} without."))
    return cases


def stream_accuracy(results: Results) -> list[Case]:
    """Chien et al.: 0.1 % less test accuracy than retraining after 200 deletions; twice that still counts."""
    cases = []
    for case in results.cases("stream", "cora"):
        key = ("stream", "cora", "certified removal", case)
        after, anew = results.mean(*key, "accuracy_after"), results.mean(*key, "accuracy_anew")
        if after is not None and anew is not None:
            words = f"{number(100 * after)} % after {case} deletions, {number(100 * anew)} % retrained with its noise."
            cases.append(Case(0.002 - (anew - after), words))
    return cases


def stream_speed(results: Results) -> list[Case]:
    """Chien et al.: four times as fast as retraining after each deletion."""
    cases = []
    for case in results.cases("stream", "cora"):
        key = ("stream", "cora", "certified removal", case)
        spent, once = results.mean(*key, "seconds"), results.mean(*key, "seconds_of_one_retraining")
        again = results.mean(*key, "retrainings")
        if spent is not None and once is not None and again is not None:
            ratio = once * int(case) / spent
            words = f"{number(ratio)} times as fast as retraining by Newton's method after each of {case} deletions"
            cases.append(Case(ratio - 4.0, f"{words}, {number(again)} retrainings among them."))
    return cases


def _place(dataset: str, case: str) -> str:
    if case[0].isalpha():
        where = "" if case == "all" else f", {case}"
    else:
        where = f", lambda {case}" if "e" in case else f", {float(case):.0%}"
    return NAMES.get(dataset, dataset) + where
