"""What we found ourselves: statements that the paper does not make, judged in the same way."""

from dataclasses import replace

from benchmarks.paper.theory.expressiveness import LOOPS
from benchmarks.report.claims.judging import READINGS
from benchmarks.report.claims.theory_judging import bound_against, exactly_none
from benchmarks.report.claims.verdicts import Case, Claim, Source
from benchmarks.report.results import REPAIRED, Results, by, called, number

#: Relative distance to retraining at which the weights count as the same.
_SAME = 1e-6


def mostly_unchanged(results: Results) -> list[Case]:
    """Judge whether most single deletions lose no direction, for both readings of "remaining"."""
    cases = []
    for reading, method in READINGS.items():
        for dataset in results.datasets("identity"):
            key = ("identity", dataset, method, "single")
            draws, unchanged = results.mean(*key, "draws"), results.mean(*key, "unchanged")
            if draws and unchanged is not None:
                words = f"{called(dataset)}, {reading}: {unchanged:,.0f} of {draws:,.0f}."
                cases.append(Case(unchanged / draws - 0.5, words, reading))
    return cases


def repaired(results: Results) -> list[Case]:
    """Judge whether the repaired weights are those of retraining."""
    cases = []
    for dataset in results.datasets("closeness"):
        for share in results.cases("closeness", dataset):
            distances = results.values("closeness", dataset, REPAIRED, share, "weights")
            if distances:
                words = (
                    f"{called(dataset)}, {float(share):.0%}, {by(len(distances))}: at most {number(max(distances))}."
                )
                cases.append(Case(_SAME - max(distances), words, called(dataset)))
    return cases


def out_of_reach(results: Results) -> list[Case]:
    """Judge whether a linear GNN misses functions of the nodes."""
    judge = exactly_none("expressiveness", tuple(LOOPS), (("missed", "dimensions of functions are out of reach"),))
    return [replace(case, margin=-case.margin) for case in judge(results)]


CLAIMS = (
    Claim(
        "Most single deletions leave the projection nothing to do",
        "Section 3.2",
        "The deletion of one node loses no direction of the features, so the projection leaves the weights as they "
        "are.",
        mostly_unchanged,
        "Lethe projects on the span of all live nodes, since the weights also combine features of nodes that are not "
        "trained on. If training nodes alone remain, the figures count deletions that lose a direction of these nodes’ "
        "span. Option 1 can still change the weights: it also removes what only test nodes support.",
        source=Source.OURS,
        remaining="Both readings: of all nodes, or of training nodes alone; the groups name them.",
    ),
    Claim(
        "Lethe’s repair ends at the weights of retraining",
        "Theorem 1, fine-tuning",
        "The relative distance to the retrained weights is at most 1e-6.",
        repaired,
        "The paper's fine-tuning, taken to the minimum of the remaining graph's objective.",
        source=Source.OURS,
    ),
    Claim(
        "Theorem 1’s bound is larger than any distance can be",
        "Theorem 1",
        "Delta exceeds |w_u| + |w_p|, which bounds any distance.",
        bound_against("triangle", "the triangle inequality gives", lambda bound, triangle: bound / triangle - 1),
        "It grows as 2^T, though the objective is convex: with a step that suits it, descent brings runs no further "
        "apart.",
        ""
        "test_smallest_examples.py::test_theorem_1_is_wrong_about_the_rows_of_three_linked_nodes_and_says_nothing_of_their_weights",
        source=Source.OURS,
    ),
    Claim(
        "A linear GNN does not reach every function of these graphs",
        "Proposition 3",
        "The conditions of Proposition 3 fail, and some functions of the nodes are out of reach for all weights.",
        out_of_reach,
        "No weights separate nodes with the same neighbours and features. Graphs are left out if this proves nothing "
        "and they are too large to decompose.",
        "test_theory.py::test_what_a_linear_gnn_reaches_is_the_rank_of_all_powers",
        source=Source.OURS,
    ),
)
