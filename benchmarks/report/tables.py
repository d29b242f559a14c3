"""Tables of results: one row for a dataset, a share or a method."""

from math import log10
from statistics import fmean

from markupsafe import Markup

from benchmarks.baselines.catalogue import is_squared
from benchmarks.baselines.protocol import LAMBDAS
from benchmarks.paper.forgetting.identity import AS_PRINTED
from benchmarks.paper.setting import CERTIFIED, CERTIFIED_LAMBDA
from benchmarks.report.claims.judging import best_lambda
from benchmarks.report.pictures.curves import closeness_curves
from benchmarks.report.pictures.svg import Point, distance_against_time
from benchmarks.report.results import (
    LETHE,
    REPAIRED,
    RETRAINED,
    Results,
    called,
    number,
    of_method,
    percent,
    repair_to_retraining,
    spread,
)
from benchmarks.report.section import Picture, Table


def identity(results: Results) -> Table:
    """Return the share of deletions that lose no direction, with the draws of all seeds together."""
    rows = []
    for dataset in results.datasets("identity"):
        size = results.size(dataset)
        sizes = [f"{size[each]:,}" for each in ("nodes", "features")] if size else ["–", "–"]
        cells = []
        for case in ("single", "0.01", "0.05", "0.1"):
            key = ("identity", dataset, LETHE, case)
            draws, unchanged = sum(results.values(*key, "draws")), sum(results.values(*key, "unchanged"))
            if case == "single" and draws:
                cells.append(f"{unchanged / draws:.2%}")
            else:
                cells.append(f"{unchanged:.0f} of {draws:.0f}" if draws else "–")
        key = ("identity", dataset, AS_PRINTED, "single")
        draws, unchanged = sum(results.values(*key, "draws")), sum(results.values(*key, "unchanged"))
        cells.append(f"{unchanged:,.0f} of {draws:,.0f}" if draws else "–")
        rows.append([called(dataset), *sizes, *cells])
    head = ("dataset", "nodes", "features", "each node alone", "random 1 %", "random 5 %", "random 10 %")
    return Table((*head, "each training node alone, training nodes remain"), rows)


def repair(results: Results) -> Table:
    """Return the distance to retraining of the projection, alone and with repair."""
    rows = []
    for dataset in results.datasets("closeness"):
        for case in results.cases("closeness", dataset):
            cells = [results.values("closeness", dataset, each, case, "weights") for each in (LETHE, REPAIRED)]
            times = [results.mean("closeness", dataset, each, case, "seconds") for each in (LETHE, REPAIRED, RETRAINED)]
            if all(cells):
                rest = map(number, (*times, repair_to_retraining(results, dataset, case)))
                rows.append([called(dataset), f"{float(case):.0%}", *map(spread, cells), *rest])
    head = ("dataset", "deleted", "projection", "with repair", "projection, s", "with repair, s", "retraining, s")
    return Table((*head, "repair alone, as a multiple of retraining"), rows)


def injection(results: Results, dataset: str) -> Table:
    """Return every method's row of the feature injection test."""
    rows = []
    for method in results.methods("injection", dataset):
        for case in results.cases("injection", dataset):
            key = ("injection", dataset, method, case)
            seconds = results.values(*key, "seconds")
            if not seconds:
                continue
            away = results.values("closeness", dataset, method, case, "weights")
            of_one = " (1)" if len(away) == 1 < len(seconds) else ""
            rows.append(
                [
                    _with_lambda(method),
                    f"{float(case):.0%}",
                    spread(results.values(*key, "channel_norm_before")),
                    spread(results.values(*key, "channel_norm_after")),
                    percent(results.values(*key, "accuracy_before")),
                    percent(results.values(*key, "accuracy_after")),
                    spread(away) + of_one,
                    spread(seconds),
                    spread(results.values(*key, "times_lethe")),
                    str(len(seconds)),
                ]
            )
    head = ("method", "deleted", "channel before", "after", "accuracy before, %", "after, %")
    return Table((*head, "distance to retraining", "time, s", "ratio to Lethe's", "seeds"), rows)


def regularization(results: Results) -> Table:
    """Return each method's accuracies after the deletion at every lambda, and the lambda chosen by validation."""
    lambdas = [f"{each:g}" for each in LAMBDAS]
    rows = []
    for dataset in results.datasets("regularization"):
        for method in results.methods("regularization", dataset):
            key = ("regularization", dataset, method)
            found = [results.values(*key, each, "accuracy_after") for each in lambdas]
            chosen = best_lambda(results, dataset, method) or "–"
            rows.append([method, called(dataset), *map(percent, found), chosen, str(max(map(len, found)))])
    return Table(("method", "dataset", *lambdas, "chosen", "seeds"), rows)


def closeness(results: Results, dataset: str) -> Table:
    """Return every method's distances, the picture of one share, and those of all shares."""
    rows, points = [], []
    cases = results.cases("closeness", dataset)
    share = "0.01" if "0.01" in cases else cases[0]
    for place, method in enumerate(results.methods("closeness", dataset), start=1):
        for case in cases:
            key = ("closeness", dataset, method, case)
            away, seconds = (results.values(*key, each) for each in ("weights", "seconds"))
            if not seconds:
                continue
            figures = [
                spread(results.values(*key, each)) for each in ("weights", "deleted", "remaining", "test", "seconds")
            ]
            ratios = results.values(*key, "times_lethe")
            rows.append(
                [f"{place}. {_with_lambda(method)}", f"{float(case):.0%}", *figures, spread(ratios), str(len(seconds))]
            )
            if case == share and ratios and away and method not in CERTIFIED:
                points.append(Point(place, _with_lambda(method), _family(method), fmean(ratios), fmean(away)))
    title = f"{called(dataset)}, {float(share):.0%} deleted: distance of the weights to retraining against time"
    against_time = [Picture(Markup(distance_against_time(points, title)), title)] if points else []
    columns = ("weights", "deleted nodes", "remaining", "test", "time, s", "ratio to Lethe's", "seeds")
    return Table(("method", "deleted", *columns), rows, pictures=(*against_time, *closeness_curves(results, dataset)))


def _family(method: str) -> str:
    """Return the colour class of a method."""
    if method == "sisa":
        return "eraser"
    return next((each for each in ("lethe", "projector", "eraser", "retraining") if each in method), "newton")


def accuracy(results: Results) -> Table:
    """Return test accuracies, a row for each model."""
    datasets = results.datasets("accuracy")
    methods = dict.fromkeys(method for each in datasets for method in results.methods("accuracy", each))
    rows = [
        [of_method(method), *(results.percent_or_why("accuracy", each, method, "all", "accuracy") for each in datasets)]
        for method in methods
    ]
    return Table(("model", *map(called, datasets)), rows)


def losses(results: Results) -> Table:
    """Return a row for each dataset and loss, at the lambda that validation nodes choose."""
    rows = []
    for dataset in results.datasets("losses"):
        for method in results.methods("losses", dataset):
            key = ("losses", dataset, method, "chosen")
            found = {each: results.values(*key, each) for each in ("lambda", "validation", "test")}
            chosen = ", ".join(f"{each:g}" for each in sorted(set(found["lambda"])))
            missed = spread(results.values(*key, "negative_log_likelihood"))
            rows.append([called(dataset), method, chosen, percent(found["validation"]), percent(found["test"]), missed])
    return Table(("dataset", "loss", "lambda", "validation, %", "test, %", "negative log-likelihood"), rows)


def ridge(results: Results) -> Table:
    """Return, for the squared loss, the channel's remaining weight and the distance from solving again."""
    rows = []
    for dataset in results.datasets("injection"):
        for method in filter(is_squared, results.methods("injection", dataset)):
            key = (dataset, method, "0.05")
            before, after = (results.values("injection", *key, f"channel_norm_{when}") for when in ("before", "after"))
            if not before:
                continue
            near = [results.values("closeness", *key, each) for each in ("weights", "times_lethe")]
            share = percent(results.values("injection", *key, "accuracy_after"))
            rows.append([called(dataset), method, *map(spread, (before, after)), share, *map(spread, near)])
    head = ("dataset", "method", "channel before", "after", "accuracy after, %", "distance to solving again")
    return Table((*head, "time, ratio to Lethe's projection"), rows)


def _with_lambda(method: str) -> str:
    """Return a method's name, with its lambda if it differs from the others'."""
    return f"{method} (lambda 1e{log10(CERTIFIED_LAMBDA):.0f})" if method in CERTIFIED else of_method(method)
