"""The first page: what we found, in plain sentences, for readers who have not read the paper."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.paper.forgetting.early import LAMBDAS, at
from benchmarks.paper.inference.lira import NEVER_THERE_QUESTION
from benchmarks.report.claims.closeness import nearer
from benchmarks.report.claims.judging import EARLY, EARLY_INJECTED, GONE, NEWTON, READINGS
from benchmarks.report.claims.verdicts import Finding, Outcome, Verdict
from benchmarks.report.results import LETHE, REPAIRED, RETRAINED, Results, called, number, shared

#: For a claim, the sentence if it is reproduced, if it holds in part, and if it holds nowhere.
_SENTENCES: Mapping[str, tuple[str, str, str]] = {
    "Projector and GraphEraser set the injected channel to zero": (
        "The paper’s own test is passed. A feature that only the deleted nodes had is gone from the model. For the "
        "projection this is so by construction.",
        "The paper’s own test is passed in part.",
        "The paper’s own test is not passed. A feature that only the deleted nodes had stays in the model.",
    ),
    "The unlearned weights contain no information about the deleted features": (
        "The weights contain nothing of the deleted nodes.",
        "The weights contain nothing of the deleted nodes in some cases.",
        "Passing that test does not mean that nothing is left. The projected weights combine the features of remaining "
        "nodes, as the paper proves, but how they combine them still depends on the deleted nodes.",
    ),
    "Influence+ and Fisher+ keep some of it because they approximate": (
        "Methods that approximate retraining fail that test, as the paper says.",
        "Influence+ and Fisher+ fail that test as published, with noise. Without noise they pass it when the model is "
        "trained to its optimum. When training stopped early, as in the paper, Fisher+ passes it and Influence+ need "
        "not.",
        "Methods that approximate retraining pass that test.",
    ),
    "Projector is closer to retraining than the baselines": (
        "The projection ends closer to retraining than every baseline.",
        "Whether the projection ends closer to retraining than the baselines depends on how the model was trained, on "
        "their lambda and on their noise.",
        "The baselines end closer to retraining than the projection.",
    ),
    "Projector is provably closer to retraining than Influence and Fisher": (
        "That it ends closer than Newton steps is proven.",
        "That it ends closer than Newton steps holds in part.",
        "That it must end closer than Newton steps is not proven. The condition of Proposition 2 always holds, and "
        "yet a Newton step without noise can be closer. At the optimum it usually is, unless it takes the neighbours "
        "out of training.",
    ),
    "Projector takes less time than every baseline": (
        "The projection takes less time than every baseline.",
        "Lethe’s projection takes less time than most baselines. Option 1 as printed and the official code often take "
        "more: one Newton step is faster where features are many.",
        "The baselines take less time than the projection.",
    ),
    "Projector hides a deletion from membership inference as well as retraining": (
        "A membership test calls deleted nodes untrained as often as after retraining.",
        "A membership test calls deleted nodes untrained as often as after retraining in some cases.",
        "A membership test still recognises the deleted nodes. After the projection it calls fewer of them untrained "
        "than after retraining.",
    ),
    "Projector is slightly better than retraining": (
        "The projection classifies slightly better than retraining.",
        "The projection sometimes classifies better than retraining, and more often worse. On Citeseer this depends on "
        "which nodes count as remaining.",
        "The projection does not classify better than retraining.",
    ),
}
#: Lethe's reading of “remaining”.
_LIVE, _ = READINGS
_UNMEASURED = "It was not measured yet."


@dataclass(frozen=True)
class Line:
    """One statement of the first page."""

    #: The verdict on a claim of the paper; None for our own statements.
    verdict: Verdict | None
    sentence: str
    figures: str


def lines(findings: Sequence[Finding], results: Results) -> list[Line]:
    """Return all lines, measured or not: the paper's claims, then our own statements."""
    by_name = {each.claim.name: each for each in findings}
    claims = [_of_claim(by_name[name], *sentences) for name, sentences in _SENTENCES.items()]
    return [*claims, _early(results), _identity(results), _repair(results), _lira(results)]


def _of_claim(finding: Finding, holds: str, in_part: str, nowhere: str) -> Line:
    sentences = {
        Verdict.REPRODUCED: holds,
        Verdict.IN_PART: in_part,
        Verdict.NOT_REPRODUCED: nowhere,
        Verdict.REFUTED: nowhere,
    }
    sentence = sentences.get(finding.verdict, f"{finding.claim.name}.")
    return Line(finding.verdict, sentence, finding.brief or finding.words)


def _ours(sentence: str, figures: str) -> Line:
    return Line(None, sentence, figures or _UNMEASURED)


def _early(results: Results) -> Line:
    """Count where the projection is closer than Newton steps after early stopping, and what stays of a channel."""
    figures = []
    for each in LAMBDAS:
        counts = []
        for name, method in NEWTON.items():
            closer = Counter(case.outcome for case in nearer(_LIVE, name, each)(results))
            left = [
                after / before
                for dataset in results.datasets(EARLY)
                for case in EARLY_INJECTED
                for before, after in shared(
                    *(
                        results.by_seed(EARLY, dataset, at(method, each), case, f"channel_norm_{when}")
                        for when in ("before", "after")
                    )
                )
            ]
            if closer and left:
                counts.append(
                    f"closer than {name} in {closer[Outcome.HOLDS]} of {closer.total()} cases, farther in "
                    f"{closer[Outcome.FAILS]}; {name} leaves {_span(left)}"
                )
        if counts:
            figures.append(f"Their lambda {each}: {'; '.join(counts)}.")
    return _ours(
        "Trained as in the paper, by descent that stops early at lambda 1e-6, and without noise: how often the "
        "projection ends closer to retraining than Newton steps do, at each lambda that these may have, and how much "
        "of an injected channel’s weight they leave. The projection leaves nothing. In the authors’ code their lambda "
        "is 1e-2 on Cora and Pubmed, and 1e-3 on Citeseer.",
        " ".join(figures),
    )


def _span(shares: Sequence[float]) -> str:
    """Describe the smallest and the largest share of a channel's weight; below `GONE` it is nothing."""
    if max(shares) < GONE:
        return "nothing of the channel"
    return f"{' to '.join(dict.fromkeys(map(number, (min(shares), max(shares)))))} times the channel’s weight"


def _identity(results: Results) -> Line:
    readings = []
    for reading, method in READINGS.items():
        shares = []
        for dataset in results.datasets("identity"):
            key = ("identity", dataset, method, "single")
            draws, unchanged = results.mean(*key, "draws"), results.mean(*key, "unchanged")
            if draws and unchanged is not None:
                shares.append(f"{called(dataset)} {unchanged / draws:.2%}")
        if shares:
            readings.append(f"If {reading}: {', '.join(shares)}.")
    return _ours(
        "The projection often removes nothing of a node. If the remaining nodes support every direction of the "
        "features, the weights stay as the deleted nodes helped to train them. The figures are the shares of nodes "
        "whose deletion, each alone, loses no direction: of all nodes, or of training nodes if these alone remain.",
        " ".join(readings),
    )


def _lira(results: Results) -> Line:
    figures = []
    for dataset in results.datasets("lira"):
        case = f"ovr, {NEVER_THERE_QUESTION}"
        areas = {each: results.mean("lira", dataset, each, case, "auc") for each in (LETHE, REPAIRED, RETRAINED)}
        words = [f"{100 * area:.1f} % with {method}" for method, area in areas.items() if area is not None]
        if not words:
            continue
        absent = (method for method, area in areas.items() if area is None)
        words += [f"{results.absent('lira', dataset, method)} with {method}" for method in absent]
        figures.append(f"{called(dataset)}: {', '.join(words)}.")
    return _ours(
        "A strong attacker can recognise models that unlearned a node by projection alone. It separates them from "
        "models that never had the node (U-LiRA, area under the curve). Guessing gives 50 %.",
        " ".join(figures),
    )


def _repair(results: Results) -> Line:
    figures = []
    for dataset in results.datasets("closeness"):
        means = [results.mean("closeness", dataset, method, "0.01", "weights") for method in (LETHE, REPAIRED)]
        if None not in means:
            figures.append(f"{called(dataset)} {number(means[0])} and {number(means[1])}")
    return _ours(
        "Lethe’s repair continues from the projection to the weights of retraining. The figures are relative distances "
        "to these with 1 % of the training nodes deleted, without and with repair.",
        f"{', '.join(figures)}." * bool(figures),
    )
