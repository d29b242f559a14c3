"""The paper's first claim, that no trace of deleted nodes remains by construction, and how results judge it."""

from benchmarks.attacks.lira import CHANCE
from benchmarks.paper.inference.lira import NEVER_THERE_QUESTION
from benchmarks.report.claims.judging import Case, Claim, all_of
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
            cases.append(Case((0.5 - unchanged) / draws, f"{words}left every weight as it was."))
    return cases


def untold(results: Results) -> list[Case]:
    """Judge whether chance lies in U-LiRA's interval for unlearned against never-there nodes."""
    cases = []
    for dataset in results.datasets("lira"):
        for case in (each for each in results.cases("lira", dataset) if each.endswith(NEVER_THERE_QUESTION)):
            key = ("lira", dataset, LETHE, case)
            for area, low in zip(results.values(*key, "auc"), results.values(*key, "auc_low"), strict=True):
                words = f"{called(dataset)}, U-LiRA, {case}: area {100 * area:.1f} %, from {100 * low:.1f} on."
                cases.append(Case(CHANCE["auc"] - low, words))
    return cases


CLAIMS = (
    Claim(
        "The projected weights hold nothing of the deleted nodes’ features",
        "Abstract, Section 3.2 and Appendix on differential privacy",
        "The unlearned model parameters do not contain any information about the unlearned node features, which is "
        "guaranteed by algorithmic construction.",
        all_of(never_unchanged, untold),
        "The guarantee is that the weights are a combination of the remaining features. The deleted nodes have "
        "influenced its coefficients. Where the others span every direction, the projection changes nothing, and the "
        "weights are still those that were trained on the deleted nodes. Judged by random deletions that change no "
        "weight, and by whether an attacker distinguishes unlearned nodes from nodes that were never there.",
        "test_robustness.py::test_where_no_direction_is_lost_the_projection_hides_nobody",
        general=True,
    ),
)
