"""The paper's claims on what its construction guarantees, and how results judge them."""

from benchmarks.attacks.lira import CHANCE
from benchmarks.paper.inference.lira import NEVER_THERE_QUESTION
from benchmarks.report.claims.judging import all_of
from benchmarks.report.claims.verdicts import Case, Claim
from benchmarks.report.results import LETHE, Results, called


def never_unchanged(results: Results) -> list[Case]:
    """Judge whether every random deletion changes the weights; unchanged weights keep what the deleted nodes taught
    them.
    """
    cases = []
    for dataset in results.datasets("identity"):
        # A single node may have taught the weights nothing, but among a hundredth of all nodes some did.
        for share in (each for each in results.cases("identity", dataset) if each != "single"):
            key = ("identity", dataset, LETHE, share)
            unchanged, draws = (sum(results.values(*key, each)) for each in ("unchanged", "draws"))
            words = f"{called(dataset)}, {float(share):.0%}: {unchanged:,.0f} of {draws:,.0f} deletions "
            cases.append(Case((0.5 - unchanged) / draws, f"{words}left every weight as it was.", called(dataset)))
    return cases


def untold(results: Results) -> list[Case]:
    """Judge whether chance lies in U-LiRA's interval for unlearned against never-there nodes."""
    cases = []
    for dataset in results.datasets("lira"):
        for case in (each for each in results.cases("lira", dataset) if each.endswith(NEVER_THERE_QUESTION)):
            key = ("lira", dataset, LETHE, case)
            for area, low in zip(results.values(*key, "auc"), results.values(*key, "auc_low"), strict=True):
                words = f"{called(dataset)}, U-LiRA, {case}: area {100 * area:.1f} %, from {100 * low:.1f} on."
                cases.append(Case(CHANCE["auc"] - low, words, called(dataset)))
    return cases


CLAIMS = (
    Claim(
        "Trained weights lie in the span of all nodes’ features",
        "Section 3.2 (precondition)",
        "Regardless of how many steps of gradient updates, w is in span{x_1, …, x_n}.",
        # Algebra, so nothing is measured.
        lambda results: [],
        "Every gradient is a combination of rows of X, since P^L only mixes them. The test follows the coefficients "
        "through hundreds of steps. “All” means all nodes: the rows of training nodes alone are not enough, since "
        "their neighbours’ features enter as well.",
        shown="projector/training/test_training.py::test_the_dual_variable_follows_hundreds_of_descent_steps_exactly",
    ),
    Claim(
        "The same holds for each class of a cross-entropy",
        "Section 3.2 (multi-class classification)",
        "Each row of W is in the span of all node features, and the projection applies to each row independently.",
        lambda results: [],
        "The test checks softmax and one class against the rest at the optimum.",
        shown="projector/training/test_training.py::"
        "test_newton_reaches_the_optimum_and_the_dual_variable_spans_its_weights",
    ),
    Claim(
        "The coefficients of the projection",
        "Proposition 1",
        "alpha = X_remain (X_remain^T X_remain)^+ w gives the orthogonal projection of w on the remaining features.",
        lambda results: [],
        "It holds for either reading of “remaining”: training nodes alone, as the paper defines V_remain (the test), "
        "and all live nodes, which Lethe takes. One line of the proof misprints Woodbury’s identity, and its end is "
        "right.",
        shown="benchmarks/baselines/test_printed.py::test_option_1_projects_on_the_remaining_training_nodes",
    ),
    Claim(
        "The projected weights are a combination of the remaining features",
        "Section 3.2 and Appendix on differential privacy",
        "The support of the unlearned weights does not include the deleted nodes’ features, by the algorithm’s design.",
        lambda results: [],
        "The test reads the rows that are left on disk and explains the weights by them after every batch. With the "
        "paper’s “remaining” the support is the training nodes, with Lethe’s all live nodes.",
        shown="projector/forgetting/test_forgetting.py::"
        "test_the_surviving_rows_on_disk_explain_the_weights_after_every_batch",
    ),
    Claim(
        "The unlearned weights contain no information about the deleted features",
        "Abstract and contributions",
        "The unlearned model parameters do not contain any information about the unlearned node features, which is "
        "guaranteed by algorithmic construction.",
        all_of(never_unchanged, untold),
        "The construction guarantees the previous claim: the weights combine the remaining features. How they combine "
        "them still depends on the deleted nodes. Where the remaining rows span every direction, the projection leaves "
        "the weights as the deleted nodes helped to train them. How often this happens depends on the reading of "
        "“remaining” (see “What we found ourselves”); the smallest example holds for both, since all its nodes are "
        "training nodes. The cases are random deletions of live nodes, and whether an attacker (U-LiRA) separates "
        "models that unlearned a node from models that never had it.",
        "test_robustness.py::test_where_no_direction_is_lost_the_projection_hides_nobody",
        general=True,
    ),
)
