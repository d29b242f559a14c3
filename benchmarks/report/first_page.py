"""The first page: the results in ten lines, for readers who have not read the paper."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.paper.inference.lira import NEVER_THERE_QUESTION
from benchmarks.report.claims.judging import Finding, Verdict
from benchmarks.report.results import LETHE, REPAIRED, RETRAINED, Results, called, number

#: Sentences for a claim, if reproduced and if refuted.
_SENTENCES = {
    "The projection takes the injected channel away": (
        "The paper’s own test is passed: a feature that only the deleted nodes had is gone from the model.",
        "The paper’s own test is not passed: of a feature that only the deleted nodes had, something stays.",
    ),
    "Influence+ and Fisher+ leave it because they approximate": (
        "That test sees approximation: methods that only come near to retraining fail it without noise, too.",
        "That test does not show forgetting: methods that update neighbours and only come near to retraining pass it, "
        "too, when they add no noise.",
    ),
    "The projection hides a deletion from membership inference as well as retraining": (
        "A membership test separates deleted nodes from nodes never trained on no better after the projection than "
        "after retraining.",
        "After the projection the model still knows whom it was trained on: once 90 % of the training nodes are "
        "deleted, a membership test calls these untrained less often than nodes never trained on, and after "
        "retraining it does not.",
    ),
    "The projection is closer to retraining than a Newton step": (
        "The projection ends closer to retraining than a Newton step, the method that it is compared with.",
        "A Newton step on the remaining graph ends closer to retraining than the projection, when it adds no noise; "
        "the paper says the opposite.",
    ),
    "The projection takes less time than every baseline": (
        "The projection takes less time than every method that it is compared with.",
        "The projection does not take less time than every method that it is compared with.",
    ),
    "The projection is slightly better than retraining": (
        "The projection classifies slightly better than retraining.",
        "The projection does not classify better than retraining.",
    ),
    "The bound of Theorem 1 says something": (
        "The paper’s theorem bounds the distance between the projection and retraining.",
        "The paper’s theorem on the distance between the projection and retraining says nothing: its bound is larger "
        "than any distance can be.",
    ),
}
#: Positions of our own lines among them.
_IDENTITY, _LIRA, _REPAIR = 2, 4, 5
_UNMEASURED = "It was not measured yet."


@dataclass(frozen=True)
class Line:
    """One of the ten lines."""

    #: The verdict on a claim of the paper; None for our own statements.
    verdict: Verdict | None
    sentence: str
    figures: str


def lines(findings: Sequence[Finding], results: Results) -> list[Line]:
    """Return all ten lines, measured or not."""
    by_name = {each.claim.name: each for each in findings}
    made = [_of_claim(by_name[name], *sentences) for name, sentences in _SENTENCES.items()]
    guarantee = by_name["The projected weights hold nothing of the deleted nodes’ features"].verdict
    for place, line in (
        (_IDENTITY, _identity(guarantee, results)),
        (_LIRA, _lira(results)),
        (_REPAIR, _repair(results)),
    ):
        made.insert(place, line)
    return made


def _of_claim(finding: Finding, holds: str, fails: str) -> Line:
    told = {Verdict.REPRODUCED: holds, Verdict.REFUTED: fails}
    figures = finding.words.replace("It fails", "The claim fails", 1).replace("It holds", "The claim holds", 1)
    return Line(finding.verdict, told.get(finding.verdict, f"{finding.claim.name}."), figures)


def _ours(sentence: str, figures: str) -> Line:
    return Line(None, sentence, figures or _UNMEASURED)


def _identity(verdict: Verdict, results: Results) -> Line:
    shares = []
    for dataset in results.datasets("identity"):
        key = ("identity", dataset, LETHE, "single")
        draws, unchanged = results.mean(*key, "draws"), results.mean(*key, "unchanged")
        if draws and unchanged is not None:
            shares.append(f"{called(dataset)} {unchanged / draws:.2%}")
    return Line(
        verdict,
        "It is not guaranteed that nothing of the deleted is left: where the other nodes support every direction of "
        "the features, the projection changes nothing, and the weights stay as the deleted nodes helped to make them.",
        f"Share of single nodes whose deletion loses no direction, and so changes no weight: {', '.join(shares)}."
        if shares
        else _UNMEASURED,
    )


def _lira(results: Results) -> Line:
    told = []
    for dataset in results.datasets("lira"):
        case = f"ovr, {NEVER_THERE_QUESTION}"
        areas = {each: results.mean("lira", dataset, each, case, "auc") for each in (LETHE, REPAIRED, RETRAINED)}
        words = [f"{100 * area:.1f} % with {method}" for method, area in areas.items() if area is not None]
        absent = [method for method, area in areas.items() if area is None]
        words += [f"not measured yet with {' and '.join(absent)}"] * bool(absent)
        told.append(f"{called(dataset)}: {', '.join(words)}.")
    return _ours(
        "An attacker who knows nearly everything, and is still answered about a deleted node, is measured by how well "
        "it separates models that unlearned it from models that unlearned others and never had it (U-LiRA; guessing is "
        "50 %; above that, something of the node is left).",
        " ".join(told),
    )


def _repair(results: Results) -> Line:
    told = []
    for dataset in results.datasets("closeness"):
        means = [results.mean("closeness", dataset, method, "0.01", "weights") for method in (LETHE, REPAIRED)]
        if None not in means:
            told.append(f"{called(dataset)} {number(means[0])} and {number(means[1])}")
    return _ours(
        "Lethe’s repair continues from the projection to the weights of retraining.",
        "Relative distance to these after 1 % of the training nodes, of the projection alone and with repair: "
        f"{', '.join(told)}." * bool(told),
    )
