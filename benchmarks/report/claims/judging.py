"""How figures become cases: comparisons of methods, with intervals over seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from statistics import fmean, stdev

from scipy.special import stdtrit

from benchmarks.paper.forgetting import early
from benchmarks.report.claims.verdicts import Case, Judge
from benchmarks.report.results import LETHE, Results, apart, by, called, of_method, shared

#: A channel counts as gone below this share of its earlier weight; rounding leaves about 1e-15.
GONE = 1e-6
#: A loss of accuracy that a reader would notice, as a share.
POINT = 0.01
APPROXIMATE = ("influence+", "fisher+")
PRINTED = "projector, option 1 as printed"
#: The two readings of “remaining”, and the method that takes each.
READINGS = {"all live nodes remain": LETHE, "training nodes remain": PRINTED}
#: What a claim says of them.
LIVE = "All live nodes, as Lethe takes it. The other reading was not measured."
BOTH = "Both readings were measured; the groups name them."
#: The paper's own training, where it was measured: the experiment, its cases of each test, and the same readings.
EARLY = "early-stopping"
EARLY_CLOSE, EARLY_INJECTED = (
    tuple(early.case(test, share) for share in shares)
    for test, shares in (("closeness", early.CLOSE), ("injection", early.INJECTED))
)
EARLY_READINGS = dict(zip(READINGS, (early.LIVE, early.OPTION_1), strict=True))
EARLY_RETRAINED = early.at(early.RETRAINING, early.PAPERS)
#: Newton steps without noise, at one of several lambdas there.
NEWTON = {"Influence+": early.INFLUENCE, "Fisher+": early.FISHER}
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


def decided_by(seeds: int) -> str:
    """Name the seeds of a case's figures, if they are not a mean."""
    return by(seeds) if seeds == 1 else f"the seed nearest to failing of {seeds}"


def over_seeds(ahead: Callable[..., float], columns: Sequence[tuple[float, ...]], words: str, group: str) -> Case:
    """Return a case whose margin is `ahead` of the mean figures, with its interval over seeds.

    `columns` has one tuple of figures a seed.
    """
    means = [fmean(figures) for figures in zip(*columns, strict=True)]
    return Case(ahead(*means), words, group, half_interval([ahead(*each) for each in columns]))


def half_interval(values: Sequence[float]) -> float:
    """Return half the 95 % interval of the mean of `values` by Student's t; 0 for a single value."""
    count = len(values)
    return float(stdtrit(count - 1, 0.975)) * stdev(values) / sqrt(count) if count > 1 else 0.0


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
                    seeds = _of_pair(results, (experiment, dataset, case, figure), pair)
                    if seeds:
                        where = place(dataset, case) + (f", {_OF[figure]}" if figure in _OF else "")
                        words = f"{where}, {by(len(seeds))}: {_beside(pair, _means(seeds), times, unit)}"
                        there.append(over_seeds(ahead, seeds, words, called(dataset)))
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


def grouped(name: str, judge: Judge) -> Judge:
    """Count a judge's cases under `name`, for claims with several parts; "{}" in it is the group until then."""
    return lambda results: [replace(case, group=name.format(case.group)) for case in judge(results)]


def for_each(methods: Mapping[str, str], made: Callable[[str], Judge]) -> Judge:
    """Judge each of `methods`, by name of its group."""
    return all_of(*(grouped(name, made(method)) for name, method in methods.items()))


def _of_pair(results: Results, key: tuple[str, str, str, str], pair: tuple[str, str]) -> list[tuple[float, ...]]:
    """Return the figures of (experiment, dataset, case, figure) of two methods, a tuple for each seed.

    Seeds delete other nodes or draw another split, so only shared seeds compare. If accuracies share one split, a
    method in which seeds draw nothing was measured once, and is compared with every seed of another method.
    """
    experiment, dataset, case, figure = key
    these, those = (results.by_seed(experiment, dataset, each, case, figure) for each in pair)
    if experiment == "accuracy" and dataset not in DRAWN_SPLITS:
        seeds = these.keys() | those.keys()
        these, those = (dict.fromkeys(seeds, *each.values()) if len(each) == 1 else each for each in (these, those))
    return shared(these, those)


def _means(seeds: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(fmean(figures) for figures in zip(*seeds, strict=True))


def _beside(pair: tuple[str, str], means: Sequence[float], times: float, unit: str) -> str:
    figures = apart([times * mean for mean in means], unit)
    return f"{', '.join(f'{of_method(method)} {figure}' for method, figure in zip(pair, figures, strict=True))}."


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
