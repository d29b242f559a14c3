"""The report's parts on robustness, membership inference, consecutive requests and support vector machines."""

from statistics import fmean

from benchmarks.paper.forgetting.dual_unlearning import METHOD as DUAL
from benchmarks.paper.forgetting.robustness import DENSE, SPARSE
from benchmarks.report.claims.robustness import (
    OPTIMAL,
    TRAININGS,
    curves,
    largest_change,
    largest_step,
    pooled,
)
from benchmarks.report.pictures.curves import robustness_curves
from benchmarks.report.results import REPAIRED, Results, called, number, of_method, percent, spread
from benchmarks.report.section import Section, Table

#: (training, phase of the paper's Table 5, method, before or after).
_PHASES = (
    *(
        (each, phase, method, when)
        for each in TRAININGS
        for phase, method, when in (
            ("before", each.retraining, "before"),
            ("retraining", each.retraining, "after"),
            ("projection", each.projection, "after"),
        )
    ),
    (OPTIMAL, "projection and repair", REPAIRED, "after"),
)
_COLUMNS = ("deleted", "kept", "others", "balanced")


def sections(results: Results) -> list[Section]:
    """Return all sections, measured or not."""
    return [
        Section(
            "More and more deleted",
            "Percent of test nodes classified correctly with 1 to 20 % of the training nodes deleted at random. All "
            "methods but the projection are retrained. The paper’s Figure 4 is of ogbn-arxiv, whose features are not "
            "at hand. On Amazon Photo and Coauthor CS each seed draws its own split, and the networks have one seed. "
            "Changes and steps in the table are those of the mean over a row’s own seeds. Verdicts compare shared "
            "seeds alone, so their figures for the projection differ from the table there.",
            [(called(each), _robustness(results, each)) for each in results.datasets("robustness")],
        ),
        Section(
            "Dense and sparse nodes deleted",
            "The same with a tenth of the training nodes deleted: those of largest, or of smallest, degree. The "
            "paper’s Table 4 is of Flickr and Reddit, which cannot be reached. Times are processor times until all "
            "nodes have their answers.",
            [("", _degrees(results))],
        ),
        Section(
            "Membership inference",
            "An adversary trains a model and a classifier on half of the graph. From the answers of the victim’s "
            "model, on the other half, the classifier guesses which nodes were trained on, before and after 90 % of "
            "them were deleted. Both models are trained to the optimum at lambda 1e-4, or stopped early at 1e-6; nodes "
            "that were not trained on then decide when to stop. Percent of correct guesses, mean ± standard deviation "
            "over splits. “Balanced” is the mean of the two columns before it; guessing gives 50. “Others less "
            "deleted” is how much more often the classifier calls others untrained, which never were trained on, than "
            "deleted nodes. That difference is what it still sees of the training; after retraining nothing is left to "
            "see.",
            [("", _membership(results))],
        ),
        Section(
            "Requests one after another",
            "The same nodes deleted in 20 requests, and in one: the relative distance between the weights, and of both "
            "to retraining, and processor times until the answers. The paper deletes once.",
            [("", _sequential(results))],
        ),
        Section(
            "Support vector machines",
            "The appendix proposes the projection for them, followed by fine-tuning, and measures nothing. This is the "
            "feature injection test with the plain hinge (Pegasos) and the smoothed one (Newton’s method). "
            "Fine-tuning is 100 steps on the remaining nodes. Distances are relative and to the retrained machine; "
            "accuracies are percent. Pegasos’ last iterate can classify badly: on Amazon Photo a retrained one "
            "reaches 17.5 %. The last table has the exact method that the appendix compares with. Cauwenberghs and "
            "Poggio’s unlearns one point at a time by its dual variable, and takes rows as independent.",
            _svm(results),
        ),
    ]


def _robustness(results: Results, dataset: str) -> Table:
    shares = results.cases("robustness", dataset)
    rows = []
    for method in results.methods("robustness", dataset):
        cells = [percent(results.values("robustness", dataset, method, each, "accuracy_after")) for each in shares]
        before = results.values("robustness", dataset, method, shares[0], "accuracy_before")
        curve, *_ = curves(results, dataset, method, method)
        most = [f"{100 * measure(curve):.2f}" for measure in (largest_change, largest_step)]
        rows.append([of_method(method), percent(before), *cells, *most, str(len(before))])
    head = ("method", "before", *(f"{float(each):.0%}" for each in shares))
    head = (*head, "largest change, points", "largest step, points", "seeds")
    return Table(head, rows, pictures=robustness_curves(results, dataset))


def _degrees(results: Results) -> Table:
    rows = []
    for dataset in results.datasets("degrees"):
        for method in results.methods("degrees", dataset):
            key = ("degrees", dataset, method)
            before = results.values(*key, DENSE, "accuracy_before")
            after = [
                words
                for case in (DENSE, SPARSE)
                for words in (
                    percent(results.values(*key, case, "accuracy_after")),
                    spread(results.values(*key, case, "seconds")),
                )
            ]
            rows.append([f"{called(dataset)}, {of_method(method)}", percent(before), *after, str(len(before))])
    head = ("", "before", "largest degree deleted", "time, s", "smallest degree deleted", "time, s", "seeds")
    return Table(head, rows)


def _membership(results: Results) -> Table:
    rows = []
    for dataset in dict.fromkeys(each for training in TRAININGS for each in results.datasets(training.experiment)):
        for training, phase, method, when in _PHASES:
            key = results, training.experiment, dataset, method
            found = [pooled(*key, f"{each}_{when}") for each in (*_COLUMNS, "accuracy")]
            if found[0]:
                name = f"{called(dataset)}, {training.name}, {phase}"
                ahead = 100 * (fmean(found[_COLUMNS.index("others")]) - fmean(found[_COLUMNS.index("deleted")]))
                rows.append([name, *map(percent, found), f"{ahead:.1f}", str(len(found[0]))])
    head = ("", "deleted as untrained", "kept as trained", "others as untrained", "balanced")
    return Table((*head, "accuracy of the model on others", "others less deleted, points", "splits"), rows)


def _sequential(results: Results) -> Table:
    rows = []
    for dataset in results.datasets("sequential"):
        for method in results.methods("sequential", dataset):
            for case in results.cases("sequential", dataset):
                key = ("sequential", dataset, method, case)
                if results.values(*key, "apart"):
                    figures = ("apart", "at_once", "one_by_one", "seconds_at_once", "seconds")
                    name = f"{called(dataset)}, {float(case):.0%}, {method}"
                    counts = [number(results.mean(*key, each)) for each in ("nodes", "requests")]
                    rows.append([name, *counts, *(spread(results.values(*key, each)) for each in figures)])
    head = ("", "nodes", "requests", "apart", "at once to retraining", "one by one to retraining")
    return Table((*head, "at once, s", "one by one, s"), rows)


def _svm(results: Results) -> list[tuple[str, Table]]:
    """Return a table of weights and one of accuracies."""
    channel = [f"channel_{each}" for each in ("before", "projected", "tuned_alone")]
    distances = [f"weights_{each}" for each in ("projected", "tuned", "tuned_alone")]
    accuracies = [f"accuracy_{each}" for each in ("before", "projected", "tuned", "retrained")]
    weights, shares = [], []
    for dataset in results.datasets("svm"):
        for method in results.methods("svm", dataset):
            for case in results.cases("svm", dataset):
                key = ("svm", dataset, method, case)
                if results.values(*key, "outside_span"):
                    name = f"{called(dataset)}, {float(case):.0%}, {method}"
                    figures = ("outside_span", "imbalance", *channel, *distances)
                    weights.append([name, *(spread(results.values(*key, each)) for each in figures)])
                    shares.append([name, *(percent(results.values(*key, each)) for each in accuracies)])
    head = ("", "W outside the rows’ span", "|Σ αᵢyᵢ| / Σ αᵢ", "channel before", "projected", "tuned alone")
    away = ("distance projected", "projected and tuned", "tuned alone")
    return [
        ("Weights", Table((*head, *away), weights)),
        ("Accuracy, %", Table(("", "before", "projected", "projected and tuned", "retrained"), shares)),
        ("Unlearning by dual variables", _dual(results)),
    ]


def _dual(results: Results) -> Table:
    figures = ("iterations", "most_iterations", "margin")
    times = ("seconds_unlearned", "seconds_learned")
    rows = []
    for dataset in results.datasets("dual-unlearning"):
        for case in results.cases("dual-unlearning", dataset):
            key = ("dual-unlearning", dataset, DUAL, case)
            nodes = number(results.mean(*key, "nodes"))
            idle = percent(results.values(*key, "idle"))
            cells = [spread(results.values(*key, each)) for each in (*figures, "weights", *times)]
            rows.append([f"{called(dataset)}, {float(case):.0%}", nodes, idle, *cells])
    head = ("", "nodes", "points without iterations, %", "iterations a point", "largest number", "points on the margin")
    return Table((*head, "distance to machines without them", "unlearning, s", "learning all, s"), rows)
