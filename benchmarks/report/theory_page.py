"""The report's parts on delta, the theorems, fine-tuning and expressiveness."""

from benchmarks.paper.theory.fine_tuning import DIFFUSED, PLAIN
from benchmarks.report.claims.theory_judging import stage_words
from benchmarks.report.pictures.curves import fine_tuning_curves
from benchmarks.report.results import Results, called, number, percent, spread
from benchmarks.report.section import Section, Table


def sections(results: Results) -> list[Section]:
    """Return all sections, measured or not."""
    return [
        Section(
            "How far a node’s features are from the others’",
            "Delta of Assumption 3 is the largest distance of a node’s features to the span of all others’. A distance "
            "is above 0 exactly if the node supports a direction alone. The paper calls Cora’s values 0 or 1 (raw), "
            "and does not describe the scaling of the other graphs.",
            [("", _delta(results))],
        ),
        Section(
            "Theorem 1 and Proposition 2",
            "After T steps of gradient descent from 0, with 1 % of the training nodes deleted and all live nodes "
            "remaining: the distance of the projected to the retrained weights (the class where it is largest), the "
            "Delta that should bound it, and the bound by the triangle inequality. Then the longest row of H beside "
            "B_x P_s, which the proof assumes to be larger, and delta beside the limit of Proposition 2. These are "
            "means over seeds; the claims quote the seed nearest to failing.",
            [("", _theorem(results))],
        ),
        Section(
            "Fine-tuning",
            "1 % of the training nodes deleted, all live nodes remaining; accuracies in percent. Fine-tuning is "
            "gradient descent on the remaining graph from the projected weights, with the step of Theorem 1. F is "
            "least at the repaired weights: F − min F and the relative distance are to these. The rate is the proof’s "
            "bound on F − min F. The curves of accuracy are the paper’s Figure 6, which is of ogbn-arxiv. They begin "
            "after 10 steps; the table has the earlier stages.",
            [(called(each), _fine_tuning(results, each)) for each in results.datasets("fine-tuning")],
        ),
        Section(
            "Expressiveness",
            "How many eigenvalues of P repeat another, and how many dimensions of functions of the nodes no linear "
            "GNN reaches. The latter is the number of rows of UᵀX that are zero for some choice of eigenvectors. Both "
            "are given twice: a lower bound, proven from components and from nodes with the same neighbours, and the "
            "exact number, by a decomposition of P on graphs of up to 4,000 nodes.",
            [("", _expressiveness(results))],
        ),
        Section(
            "Dual variables",
            "One class against the rest, over all classes. A pair is a training node and a class, classified wrongly "
            "or correctly. The table has the pairs’ dual variables, and the relative change of the weights when one "
            "node leaves the sum: one of five random nodes, or the one with the smallest dual variable.",
            [("", _duals(results))],
        ),
    ]


def _delta(results: Results) -> Table:
    rows = []
    for dataset in results.datasets("delta"):
        for scaling in results.methods("delta", dataset):
            key = ("delta", dataset, scaling, "all")
            alone, nodes = results.mean(*key, "alone"), results.mean(*key, "nodes")
            figures = [number(results.mean(*key, each)) for each in ("delta", "mean_row", "longest_row")]
            rows.append([called(dataset), scaling, *figures, f"{alone:,.0f} of {nodes:,.0f}"])
    return Table(("dataset", "rows", "delta", "norm of the mean row", "longest row", "nodes alone"), rows)


def _theorem(results: Results) -> Table:
    rows = []
    for dataset in results.datasets("theorem"):
        for taken in results.cases("theorem", dataset):
            key = ("theorem", dataset, PLAIN, taken)
            found = [
                results.values(*key, each) for each in ("distance", "triangle", "longest_row", "delta", "condition")
            ]
            distance, triangle, longest, delta, condition = map(spread, found)
            sides = zip(*(results.values(*key, each) for each in ("B_x", "P_s")), strict=True)
            limit = spread([B_x * P_s for B_x, P_s in sides])
            rows.append(
                [
                    called(dataset),
                    taken,
                    distance,
                    number(results.mean(*key, "bound")),
                    triangle,
                    longest,
                    limit,
                    delta,
                    condition,
                ]
            )
    head = ("dataset", "T", "distance", "Delta", "triangle inequality", "longest row of H", "B_x P_s", "delta")
    return Table((*head, "its limit"), rows)


def _fine_tuning(results: Results, dataset: str) -> Table:
    rows = []
    for method in results.methods("fine-tuning", dataset):
        for stage in results.cases("fine-tuning", dataset):
            key = ("fine-tuning", dataset, method, stage)
            shares = [percent(results.values(*key, each)) for each in ("train", "validation", "accuracy")]
            figures = [spread(results.values(*key, each)) for each in ("gap", "distance", "rate")]
            rows.append([stage_words(stage) + ", with diffusion" * (method == DIFFUSED), *shares, *figures])
    head = ("", "training", "validation", "test", "F − min F", "distance", "the rate")
    return Table(head, rows, pictures=fine_tuning_curves(results, dataset))


def _expressiveness(results: Results) -> Table:
    rows = []
    for dataset in results.datasets("expressiveness"):
        for loops in results.methods("expressiveness", dataset):
            key = ("expressiveness", dataset, loops)
            counts = [_count(results.mean(*key, "proven", each)) for each in ("nodes", "components", "twins")]
            both = [
                f"≥ {_count(results.mean(*key, 'proven', each))}; {_count(results.mean(*key, 'decomposed', each))}"
                for each in ("repeats", "missed")
            ]
            rows.append([called(dataset), loops, *counts, *both])
    head = ("dataset", "P", "nodes", "components", "same neighbours", "eigenvalues that repeat: proven; all")
    return Table((*head, "dimensions missed: proven; all"), rows)


def _duals(results: Results) -> Table:
    rows = []
    for dataset in results.datasets("duals"):
        for case in results.cases("duals", dataset):
            key = ("duals", dataset, "retraining", case)
            names = ("smallest_dual", "largest_dual", "least_change", "mean_change", "change_at_smallest")
            figures = [spread(results.values(*key, each)) for each in names]
            rows.append([f"{called(dataset)}, {case}", _count(results.mean(*key, "pairs")), *figures])
    head = ("", "pairs", "smallest dual variable", "largest", "least change of w", "mean change")
    return Table((*head, "change without the smallest"), rows)


def _count(value: float | None) -> str:
    return "not decomposed" if value is None else f"{value:,.0f}"
