"""How results judge a claim.

A claim is judged in every measured case (a dataset, a share, a method it names) by a margin that is positive if it
holds. It is reproduced if it holds in all cases, and refuted by the first in which it does not. A statement about every
graph is refuted by one example, whatever was measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isclose
from statistics import fmean

from benchmarks.report.results import Results, apart, by, called

#: A channel counts as gone below this share of its earlier weight; rounding leaves about 1e-15.
GONE = 1e-6
#: A loss of accuracy that a reader would notice, as a share.
POINT = 0.01
APPROXIMATE = ("influence+", "fisher+")
#: On these graphs a seed draws the split, so accuracies of different seeds have different test nodes.
DRAWN_SPLITS = ("amazon_photo", "coauthor_cs")
#: The subject of a figure, where several stand side by side.
_OF = {
    "deleted": "deleted nodes",
    "remaining": "remaining nodes",
    "test": "test nodes",
    "accuracy_before": "before",
    "accuracy_after": "after",
}


class Verdict(StrEnum):
    """The status of a claim."""

    REPRODUCED = "reproduced"
    REFUTED = "refuted"
    UNREACHABLE = "not testable here"
    UNMEASURED = "not measured yet"


@dataclass(frozen=True)
class Case:
    """One case that tests a claim."""

    #: Positive if the claim holds; larger is clearer.
    margin: float
    words: str


Judge = Callable[[Results], list[Case]]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper."""

    name: str
    where: str
    text: str
    judge: Judge | None
    #: Why our result differs, or the context of the verdict.
    because: str
    #: The test that shows a few nodes for which the claim is false: FILE::TEST below tests/unit/benchmarks.
    example: str = ""
    #: The paper states it for every graph, so the example refutes it even if it holds in everything that was measured.
    general: bool = False


@dataclass(frozen=True)
class Finding:
    """A claim and its verdict."""

    claim: Claim
    verdict: Verdict
    words: str


def found(claim: Claim, results: Results) -> Finding:
    """Judge `claim` by `results`."""
    if claim.judge is None:
        return Finding(claim, Verdict.UNREACHABLE, "The data cannot be reached here.")
    cases = claim.judge(results)
    if any(case.margin <= 0 for case in cases):
        return Finding(claim, Verdict.REFUTED, _failing(cases))
    if claim.general:
        words = f"{_holding(cases) if cases else ''} It is false in general: see the smallest example."
        return Finding(claim, Verdict.REFUTED, words.strip())
    if not cases:
        return Finding(claim, Verdict.UNMEASURED, "Nothing was measured yet.")
    return Finding(claim, Verdict.REPRODUCED, _holding(cases))


def decided_by(seeds: int) -> str:
    """Name the seeds of a case's figures, if they are not a mean."""
    return by(seeds) if seeds == 1 else f"the seed nearest to failing of {seeds}"


def _failing(cases: Sequence[Case]) -> str:
    failed = sum(case.margin <= 0 for case in cases)
    ties = sum(case.margin <= 0 and isclose(case.margin, 0.0, abs_tol=1e-12) for case in cases)
    where = _some(failed, len(cases)) + f", {ties} of them at the very limit" * bool(ties)
    words = f"It fails in {where}. Worst: {min(cases, key=_margin).words}"
    if failed < len(cases):
        words += f" It holds in the others, most clearly: {max(cases, key=_margin).words}"
    return words


def _holding(cases: Sequence[Case]) -> str:
    return f"It holds in {_all(len(cases))}. Closest to failing: {min(cases, key=_margin).words}"


def _margin(case: Case) -> float:
    return case.margin


def _some(failed: int, count: int) -> str:
    return _all(count) if failed == count else f"{failed} of {count} cases"


def _all(count: int) -> str:
    return "the one case measured" if count == 1 else f"all {count} cases measured"


def all_of(*judges: Judge) -> Judge:
    """Combine the cases of several judges."""
    return lambda results: [case for judge in judges for case in judge(results)]


def compared(
    experiment: str,
    figure: str,
    pairs: Sequence[tuple[str, str]],
    ahead: Callable[[float, float], float],
    cases: Sequence[str] | None = None,
    times: float = 1.0,
    unit: str = "",
) -> Judge:
    """Compare means of one figure for pairs of methods; `ahead` gives the margin of the first over the second."""

    def judge(results: Results) -> list[Case]:
        there = []
        for dataset in results.datasets(experiment):
            for case in results.cases(experiment, dataset) if cases is None else cases:
                for pair in pairs:
                    found = _means(results, (experiment, dataset, case, figure), pair)
                    if found:
                        *means, seeds = found
                        where = place(dataset, case) + (f", {_OF[figure]}" if figure in _OF else "")
                        there.append(Case(ahead(*means), f"{where}, {by(seeds)}: {_beside(pair, means, times, unit)}"))
        return there

    return judge


def accuracies(
    experiment: str,
    figure: str,
    pairs: Sequence[tuple[str, str]],
    ahead: Callable[[float, float], float],
    cases: Sequence[str] | None = None,
) -> Judge:
    """`compared` for a share in percent."""
    return compared(experiment, figure, pairs, ahead, cases, times=100, unit=" %")


def of_graph(dataset: str, judge: Judge) -> Judge:
    """Restrict a judge to one graph."""
    return lambda results: judge(Results([each for each in results.records if each["dataset"] == dataset]))


def better_on_most(experiment: str, figure: str, pairs: Sequence[tuple[str, str]]) -> Judge:
    """Judge whether the first of a pair has the larger mean accuracy on more than half of the graphs that have both."""

    def judge(results: Results) -> list[Case]:
        there = []
        datasets = results.datasets(experiment)
        for case in dict.fromkeys(each for dataset in datasets for each in results.cases(experiment, dataset)):
            for pair in pairs:
                found = {dataset: _means(results, (experiment, dataset, case, figure), pair) for dataset in datasets}
                graphs = {dataset: means for dataset, means in found.items() if means}
                if graphs:
                    ahead = sum(first > second for first, second, _ in graphs.values())
                    worst = min(graphs, key=lambda each: graphs[each][0] - graphs[each][1])
                    *means, seeds = graphs[worst]
                    words = f"{pair[0]} on {ahead} of {len(graphs)} graphs ahead of {pair[1]}{_where(case)}; least on "
                    words += f"{called(worst)}, {by(seeds)}: {_beside(pair, means, 100, ' %')}"
                    there.append(Case(ahead / len(graphs) - 0.5, words))
        return there

    return judge


def _means(results: Results, key: tuple[str, str, str, str], pair: tuple[str, str]) -> tuple[float, float, int] | None:
    """Return the means of (experiment, dataset, case, figure) for two methods, and the number of seeds; None without
    any.

    Seeds delete other nodes or draw another split, so only shared seeds compare. If accuracies share one split, a
    method in which seeds draw nothing was measured once, and is compared with all seeds of another method. The same
    holds for a method with only one seed.
    """
    experiment, dataset, case, figure = key
    these, those = (results.by_seed(experiment, dataset, each, case, figure) for each in pair)
    if experiment != "accuracy" or dataset in DRAWN_SPLITS:
        shared = these.keys() & those.keys()
        these, those = ({seed: each[seed] for seed in shared} for each in (these, those))
    if not these or not those:
        return None
    seeds = min((len(each) for each in (these, those) if len(each) > 1), default=1)
    return fmean(these.values()), fmean(those.values()), seeds


def _beside(pair: tuple[str, str], means: Sequence[float], times: float, unit: str) -> str:
    figures = apart([times * mean for mean in means], unit)
    return f"{', '.join(f'{method} {figure}' for method, figure in zip(pair, figures, strict=True))}."


def better(first: float, second: float) -> float:
    """Return the lead of the first accuracy."""
    return first - second


def costs(first: float, second: float) -> float:
    """Return how far the first accuracy falls short by more than a point."""
    return second - first - POINT


def best_lambda(results: Results, dataset: str, method: str) -> str | None:
    """Return the lambda that classifies validation nodes best, before and after the deletion.

    Both accuracies count equally: the paper's appendix ("Model configuration") chooses lambda "to balance the
    performance before and after unlearning", since second-order methods fail at small lambdas. The smallest wins a tie.
    """
    scores = {}
    for case in results.cases("regularization", dataset):
        key = ("regularization", dataset, method, case)
        before, after = results.mean(*key, "validation_before"), results.mean(*key, "validation_after")
        if before is not None and after is not None:
            scores[case] = before + after
    return max(scores, key=lambda case: scores[case]) if scores else None


def smaller(first: float, second: float) -> float:
    """Return the difference as a share of the second, so that margins of different sizes compare."""
    return (second - first) / second if second else -first


def place(dataset: str, case: str) -> str:
    """Name a dataset and a case."""
    return called(dataset) + _where(case)


def _where(case: str) -> str:
    if case[0].isalpha():
        return "" if case == "all" else f", {case}"
    return f", lambda {case}" if "e" in case else f", {float(case):.0%}"
