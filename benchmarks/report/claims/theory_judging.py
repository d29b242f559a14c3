"""How results judge the paper's theorems, propositions and Table 3, and its statements on fine-tuning."""

from collections.abc import Callable, Sequence
from statistics import fmean

from benchmarks.paper.theory.delta import SCALINGS
from benchmarks.paper.theory.fine_tuning import DIFFUSED, PLAIN
from benchmarks.report.claims.judging import decided_by, over_seeds
from benchmarks.report.claims.verdicts import Case
from benchmarks.report.results import Results, apart, by, called, number, repair_to_retraining, shared

#: Table 3 for the available datasets: (delta, |mean x|).
PRINTED = {"cora": (0.2984, 0.6923), "pubmed": (0.0049, 0.5546)}
#: Relative deviation at which a figure of four digits still counts as equal.
_AS_PRINTED = 0.005
#: Relative change of the weights that counts as none.
_UNCHANGED = 1e-6
_FIGURES = {
    "gap": "F − min F",
    "rate": "the rate",
    "accuracy": "test accuracy",
    "train": "training accuracy",
    "validation": "validation accuracy",
}


def delta_beside_the_mean(results: Results) -> list[Case]:
    """Judge whether delta is smaller than the norm of the mean row, in every scaling."""
    cases = []
    for dataset in results.datasets("delta"):
        for scaling in results.methods("delta", dataset):
            found, mean = (results.mean("delta", dataset, scaling, "all", each) for each in ("delta", "mean_row"))
            if found is not None and mean is not None:
                words = f"{called(dataset)}, {scaling}: delta {number(found)}, norm of the mean row {number(mean)}."
                cases.append(Case(mean - found, words, called(dataset)))
    return cases


def delta_as_printed(dataset: str, scalings: Sequence[str]) -> Callable[[Results], list[Case]]:
    """Judge whether one of `scalings` gives both of Table 3's figures."""

    def judge(results: Results) -> list[Case]:
        far, shown = [], []
        printed = PRINTED[dataset]
        for scaling in scalings:
            found = [results.mean("delta", dataset, scaling, "all", each) for each in ("delta", "mean_row")]
            if None not in found:
                far.append(max(abs((ours or 0.0) / its - 1) for ours, its in zip(found, printed, strict=True)))
                shown.append(f"{number(found[0])} and {number(found[1])} ({scaling})")
        words = f"{called(dataset)}: {number(printed[0])} and {number(printed[1])} printed; {', '.join(shown)}."
        return [Case(_AS_PRINTED - min(far), words, called(dataset))] if far else []

    return judge


def delta_of_cora(results: Results) -> list[Case]:
    """Judge whether Cora's delta is larger than every other graph's in the same scaling."""
    cases = []
    for scaling in SCALINGS:
        found = {each: results.mean("delta", each, scaling, "all", "delta") for each in results.datasets("delta")}
        cora = found.pop("cora", None)
        for dataset, other in found.items():
            if cora is not None and other is not None:
                words = f"{called(dataset)} {number(other)}, Cora {number(cora)} ({scaling})."
                cases.append(Case(cora - other, words, called(dataset)))
    return cases


def bound_against(figure: str, words: str, ahead: Callable[[float, float], float]) -> Callable[[Results], list[Case]]:
    """Compare Theorem 1's bound with another figure of the same seed, by `ahead` of both; `words` name the other."""

    def judge(results: Results) -> list[Case]:
        cases = []
        for dataset in results.datasets("theorem"):
            for taken in results.cases("theorem", dataset):
                key = ("theorem", dataset, PLAIN, taken)
                bounds, others = (results.values(*key, each) for each in ("bound", figure))
                if bounds:
                    bound, other = min(zip(bounds, others, strict=True), key=lambda pair: ahead(*pair))
                    where = f"{called(dataset)}, T = {taken}, {decided_by(len(bounds))}"
                    found = f"{where}: Delta is {number(bound)}, {words} {number(other)}."
                    cases.append(Case(ahead(bound, other), found, called(dataset)))
        return cases

    return judge


def rows_as_bounded(results: Results) -> list[Case]:
    """Judge whether every row of H is as short as Theorem 1's proof says, at most B_x P_s."""
    cases = []
    for dataset in results.datasets("theorem"):
        key = ("theorem", dataset, PLAIN, "1")
        figures = (results.values(*key, each) for each in ("longest_row", "B_x", "P_s"))
        pairs = [(longest, B_x * P_s) for longest, B_x, P_s in zip(*figures, strict=True)]
        if pairs:
            longest, limit = min(pairs, key=lambda pair: pair[1] - pair[0])
            where = f"{called(dataset)}, {decided_by(len(pairs))}"
            words = f"{where}: the longest row is {number(longest)}, B_x P_s is {number(limit)}."
            # Rows of isolated nodes have length B_x, up to rounding.
            cases.append(Case(limit * (1 + 1e-9) - longest, words, called(dataset)))
    return cases


def condition(results: Results) -> list[Case]:
    """Judge Proposition 2's condition on delta."""
    cases = []
    for dataset in results.datasets("theorem"):
        for taken in results.cases("theorem", dataset):
            key = ("theorem", dataset, PLAIN, taken)
            pairs = list(zip(*(results.values(*key, each) for each in ("condition", "delta")), strict=True))
            if pairs:
                limit, delta = min(pairs, key=lambda pair: pair[0] - pair[1])
                where = f"{called(dataset)}, T = {taken}, {decided_by(len(pairs))}"
                words = f"{where}: delta {number(delta)}, limit {number(limit)}."
                cases.append(Case(limit - delta, words, called(dataset)))
    return cases


def fine_tuned(
    first: tuple[str, str], second: tuple[str, str], ahead: Callable[[float, float], float], methods: Sequence[str]
) -> Callable[[Results], list[Case]]:
    """Compare means of two (stage, figure) of fine-tuning; `ahead` gives the margin of the first over the second."""

    def judge(results: Results) -> list[Case]:
        cases = []
        for dataset in results.datasets("fine-tuning"):
            for method in methods:
                key = ("fine-tuning", dataset, method)
                seeds = shared(*(results.by_seed(*key, *each) for each in (first, second)))
                if seeds:
                    means = [fmean(each) for each in zip(*seeds, strict=True)]
                    figures = zip((first, second), _figures(first[1], means), strict=True)
                    parts = [f"{_FIGURES[figure]} {stage_words(stage)} {value}" for (stage, figure), value in figures]
                    where = f"{called(dataset)}{', with diffusion' * (method == DIFFUSED)}"
                    words = f"{where}, {by(len(seeds))}: {', '.join(parts)}."
                    cases.append(over_seeds(ahead, seeds, words, called(dataset)))
        return cases

    return judge


def repair_beside_retraining(results: Results) -> list[Case]:
    """Judge on each graph whether the repair after the projection is faster than retraining."""
    found = {each: repair_to_retraining(results, each, "0.01") for each in results.datasets("closeness")}
    return [
        Case(1 - ratio, f"{called(dataset)}: {number(ratio)} times retraining.", called(dataset))
        for dataset, ratio in found.items()
        if ratio is not None
    ]


def exactly_none(
    experiment: str, methods: Sequence[str], named: Sequence[tuple[str, str]]
) -> Callable[[Results], list[Case]]:
    """Judge whether the figures `named` are 0 in every case."""

    def judge(results: Results) -> list[Case]:
        cases = []
        for dataset in results.datasets(experiment):
            for method in methods:
                for case in ("decomposed", "proven"):
                    key = (experiment, dataset, method, case)
                    found = [(words, results.mean(*key, figure)) for figure, words in named]
                    counts = [(words, value) for words, value in found if value is not None]
                    if counts:
                        least = "at least " if case == "proven" else ""
                        words = ", ".join(f"{least}{value:,.0f} {words}" for words, value in counts)
                        nodes = results.mean(*key, "nodes") or 0
                        words = f"{called(dataset)}, {method}, {nodes:,.0f} nodes: {words}."
                        total = sum(value for _, value in counts)
                        if total or case == "decomposed":  # a lower bound of 0 proves nothing
                            cases.append(Case(0.5 - total, words, called(dataset)))
                        break
        return cases

    return judge


def dual_variables(results: Results) -> list[Case]:
    """Judge whether dual variables of misclassified nodes are 0, and whether the weights stay the same without one."""
    cases = []
    for dataset in results.datasets("duals"):
        key = ("duals", dataset, "retraining", "misclassified")
        duals = results.values(*key, "smallest_dual")
        changes = [change for each in ("least_change", "change_at_smallest") for change in results.values(*key, each)]
        if duals and changes:
            words = (
                f"{called(dataset)}: the smallest dual variable of a misclassified node is {number(min(duals))}. "
                "Without that node, or without one of five random ones, the weights change by at least "
                f"{number(min(changes))}."
            )
            cases.append(Case(_UNCHANGED - min(changes), words, called(dataset)))
    return cases


def stage_words(stage: str) -> str:
    """Name the stage of fine-tuning."""
    start, _, taken = stage.rpartition(", ")
    if taken.isdigit():
        return f"after {taken} steps {start}".strip()
    return "after the projection" if stage == "after" else stage


def _figures(figure: str, values: Sequence[float]) -> list[str]:
    if figure in ("gap", "rate"):
        return apart(values)
    return apart([100 * each for each in values], " %")
