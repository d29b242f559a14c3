"""The paper's claims, and what the results say of each.

A claim is judged in every case that was measured (a dataset, a share, a method it names), by a margin that is positive
where it holds. It is reproduced when it holds in all, and refuted by the first in which it does not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import fmean, stdev

from benchmarks.paper.experiments import EXPERIMENTS
from benchmarks.report.results import LETHE, NAMES, RETRAINED, Results, number

#: A channel whose weight fell below this share of what it was is gone; rounding leaves about 1e-15.
_GONE = 1e-6
#: Points of accuracy, as a share, that a reader would call a loss.
_POINT = 0.01
_PRINTED = "projector, option 1 as printed"
_APPROXIMATE = ("influence+", "fisher+")
_NOISELESS = ("fisher+, without noise", "influence+, authors' code")
_ERASERS = tuple(name for name in EXPERIMENTS["closeness"].methods if name.startswith("graph eraser"))


class Verdict(StrEnum):
    """What is known of a claim."""

    REPRODUCED = "reproduced"
    REFUTED = "refuted"
    UNREACHABLE = "not testable here"
    UNMEASURED = "not measured yet"


@dataclass(frozen=True)
class Case:
    """One in which a claim can be looked at."""

    #: Positive where it holds, the more the clearer.
    margin: float
    words: str


@dataclass(frozen=True)
class Claim:
    """Something that the paper says."""

    name: str
    where: str
    text: str
    judge: Callable[[Results], Sequence[Case]] | None
    #: Why ours differs, or what has to be known to read the verdict.
    because: str


@dataclass(frozen=True)
class Finding:
    """A claim and what is known of it."""

    claim: Claim
    verdict: Verdict
    words: str


def found(claim: Claim, results: Results) -> Finding:
    """What `results` say of `claim`."""
    if claim.judge is None:
        return Finding(claim, Verdict.UNREACHABLE, "The data cannot be reached here.")
    cases = claim.judge(results)
    if not cases:
        return Finding(claim, Verdict.UNMEASURED, "Nothing was measured yet.")
    failed = [case for case in cases if case.margin <= 0]
    least = min(cases, key=lambda case: case.margin)
    if failed:
        return Finding(claim, Verdict.REFUTED, f"It fails in {len(failed)} of {len(cases)} cases. Worst: {least.words}")
    return Finding(claim, Verdict.REPRODUCED, f"It holds in {_all(len(cases))}. Closest to failing: {least.words}")


def _all(count: int) -> str:
    return "the one case measured" if count == 1 else f"all {count} cases measured"


def _channel(methods: Sequence[str], *, gone: bool) -> Callable[[Results], list[Case]]:
    """Whether the injected channel's weight is gone after these methods, or still there."""

    def judge(results: Results) -> list[Case]:
        cases = []
        for dataset in results.datasets("injection"):
            for method in methods:
                for share in results.cases("injection", dataset):
                    key = ("injection", dataset, method, share)
                    before = results.values(*key, "channel_norm_before")
                    after = results.values(*key, "channel_norm_after")
                    if not before:
                        continue
                    left = [last / first for first, last in zip(before, after, strict=True)]
                    margin = _GONE - max(left) if gone else min(left) - _GONE
                    words = f"{_place(dataset, share)}, {method}: from {number(max(before))} to {number(max(after))}."
                    cases.append(Case(margin, words))
        return cases

    return judge


def _compared(
    experiment: str,
    figure: str,
    pairs: Sequence[tuple[str, str]],
    ahead: Callable[[float, float], float],
    cases: Sequence[str] | None = None,
    times: float = 1.0,
    unit: str = "",
) -> Callable[[Results], list[Case]]:
    """Means of one figure for pairs of methods; `ahead` gives the margin of the first over the second."""

    def judge(results: Results) -> list[Case]:
        there = []
        for dataset in results.datasets(experiment):
            for case in results.cases(experiment, dataset) if cases is None else cases:
                for one, other in pairs:
                    # Seeds delete other nodes, so only those that both have compare; accuracies stand alone.
                    these, those = (results.by_seed(experiment, dataset, each, case, figure) for each in (one, other))
                    if experiment != "accuracy":
                        shared = these.keys() & those.keys()
                        these, those = ({seed: each[seed] for seed in shared} for each in (these, those))
                    if these and those:
                        first, second = fmean(these.values()), fmean(those.values())
                        words = (
                            f"{_place(dataset, case)}: {one} {number(times * first)}{unit}, "
                            f"{other} {number(times * second)}{unit}."
                        )
                        there.append(Case(ahead(first, second), words))
        return there

    return judge


def _chosen(results: Results) -> list[Case]:
    """Influence+ and Fisher+ beside retraining, each at the lambda that validation nodes choose for it."""
    cases = []
    for dataset in results.datasets("regularization"):
        chosen = {each: best_lambda(results, dataset, each) for each in (*_APPROXIMATE, RETRAINED)}
        after = {
            method: results.mean("regularization", dataset, method, best, "accuracy_after")
            for method, best in chosen.items()
            if best is not None
        }
        for method in _APPROXIMATE:
            first, second = after.get(method), after.get(RETRAINED)
            if first is not None and second is not None:
                words = (
                    f"{_place(dataset, 'all')}, 5 %: {method} {number(100 * first)} % at lambda {chosen[method]}, "
                    f"{RETRAINED} {number(100 * second)} % at {chosen[RETRAINED]}."
                )
                cases.append(Case(second - first - _POINT, words))
    return cases


def best_lambda(results: Results, dataset: str, method: str) -> str | None:
    """That with the best accuracies of validation nodes before and after, as `choose_regularization` has it."""
    scores = {}
    for case in results.cases("regularization", dataset):
        key = ("regularization", dataset, method, case)
        before, after = results.mean(*key, "validation_before"), results.mean(*key, "validation_after")
        if before is not None and after is not None:
            scores[case] = before + after
    return max(scores, key=lambda case: scores[case]) if scores else None


def _smaller(first: float, second: float) -> float:
    """As a share of the second, so that margins of different sizes compare."""
    return (second - first) / second if second else -first


def _growing(results: Results) -> list[Case]:
    """Whether the projection is farther from retraining the more is deleted."""
    cases = []
    for dataset in results.datasets("closeness"):
        shares = results.cases("closeness", dataset)
        means = [(share, results.mean("closeness", dataset, LETHE, share, "weights")) for share in shares]
        away = [(share, mean) for share, mean in means if mean is not None]
        for (less, near), (more, far) in pairwise(away):
            words = f"{_place(dataset, less)}: {number(near)}, and {number(far)} at {float(more):.0%}."
            cases.append(Case(_smaller(near, far), words))
    return cases


def _deviation(results: Results) -> list[Case]:
    """Whether accuracies with an MLP vary more over seeds than without."""
    cases = []
    for dataset in results.datasets("accuracy"):
        plain = results.values("accuracy", dataset, "linear", "all", "accuracy")
        for method in ("+ MLP, 10 % public", "+ MLP, 50 % public"):
            deep = results.values("accuracy", dataset, method, "all", "accuracy")
            if len(deep) > 1 and plain:
                # A graph with its own split gives the linear model no deviation at all.
                deviations = stdev(deep), stdev(plain) if len(plain) > 1 else 0.0
                words = f"{NAMES.get(dataset, dataset)}: {100 * deviations[0]:.2f} with {method}, "
                cases.append(Case(deviations[0] - deviations[1], f"{words}{100 * deviations[1]:.2f} without."))
    return cases


def _stream_accuracy(results: Results) -> list[Case]:
    """Chien et al.: 0.1 % less test accuracy than retraining after 200 deletions; twice that still counts."""
    cases = []
    for case in results.cases("stream", "cora"):
        key = ("stream", "cora", "certified removal", case)
        after, anew = results.mean(*key, "accuracy_after"), results.mean(*key, "accuracy_anew")
        if after is not None and anew is not None:
            words = f"{number(100 * after)} % after {case} deletions, {number(100 * anew)} % retrained with its noise."
            cases.append(Case(0.002 - (anew - after), words))
    return cases


def _stream_speed(results: Results) -> list[Case]:
    """Chien et al.: four times as fast as retraining after each deletion."""
    cases = []
    for case in results.cases("stream", "cora"):
        key = ("stream", "cora", "certified removal", case)
        spent, once = results.mean(*key, "seconds"), results.mean(*key, "seconds_of_one_retraining")
        again = results.mean(*key, "retrainings")
        if spent is not None and once is not None and again is not None:
            ratio = once * int(case) / spent
            words = f"{number(ratio)} times as fast as retraining by Newton's method after each of {case} deletions"
            cases.append(Case(ratio - 4.0, f"{words}, {number(again)} retrainings among them."))
    return cases


def _place(dataset: str, case: str) -> str:
    return NAMES.get(dataset, dataset) + ("" if case == "all" else f", {float(case):.0%}")


_BASELINES = (*_APPROXIMATE, "influence", *_ERASERS)
_NETWORKS = ("gcn", "sage", "gat", "appnp")

CLAIMS = (
    Claim(
        "The projection takes the injected channel away",
        "Table 1, observation 1",
        "Projector can perfectly unlearn the deleted nodes and sets the extra feature's weight to zero.",
        _channel((LETHE, _PRINTED), gone=True),
        "Only the deleted nodes support that direction, so any projection on the others' span removes it.",
    ),
    Claim(
        "GraphEraser takes it away as well",
        "Table 1, observation 1",
        "GraphEraser can perfectly unlearn the deleted nodes.",
        _channel(_ERASERS, gone=True),
        "Its shards are trained anew; how the other shards were cut still depends on the deleted nodes.",
    ),
    Claim(
        "Influence+ and Fisher+ leave some of it",
        "Table 1, observation 1",
        "Influence+ and Fisher+ cannot fully unlearn the correlation because they are approximate.",
        _channel(_APPROXIMATE, gone=False),
        "What is left is their noise: see the next claim.",
    ),
    Claim(
        "Influence+ and Fisher+ leave it because they approximate",
        "Table 1, observation 1",
        "… because they are approximate unlearning methods.",
        _channel(_NOISELESS, gone=False),
        "Without noise a Newton step sets the channel to 0 exactly: no remaining row has a part along it, and the "
        "regularization alone is quadratic there. The test sees the noise, not the approximation.",
    ),
    Claim(
        "Options 1 and 2 of Algorithm 1 are the same",
        "Section 3.2",
        "Two different types of input are available that lead to identical results.",
        _compared(
            "closeness",
            "weights",
            (("projector, option 2 as printed", _PRINTED),),
            lambda first, second: 1e-3 - abs(first - second),
        ),
        "Option 2's matrix is not the Woodbury identity, whose middle is [I - X_D M+ X_D^T]^-1.",
    ),
    Claim(
        "The projection takes less time than every baseline",
        "Table 1, observation 2",
        "Projector requires less time to unlearn because it is a one-shot approach.",
        _compared(
            "injection", "seconds", tuple((LETHE, other) for other in (*_BASELINES, RETRAINED)), _smaller, unit=" s"
        ),
        "Processor seconds of Lethe's projection, predictions included, against an optimised retraining by Newton's "
        "method instead of epochs of descent.",
    ),
    Claim(
        "The paper’s own form of it takes less time too",
        "Table 1, observation 2",
        "… with Option 1 as printed, which factorises the remaining rows' Gram matrix.",
        _compared(
            "injection", "seconds", tuple((_PRINTED, other) for other in (*_BASELINES, RETRAINED)), _smaller, unit=" s"
        ),
        "A pseudo-inverse costs d^3: with many features and few nodes that is more than training.",
    ),
    Claim(
        "GraphEraser costs accuracy",
        "Table 1, observation 3",
        "GraphEraser has around 4 and 9 % performance degradation due to graph partitioning.",
        _compared(
            "injection",
            "accuracy_after",
            tuple((name, RETRAINED) for name in _ERASERS),
            lambda first, second: second - first - _POINT,
            times=100,
            unit=" %",
        ),
        "Counted from one point on; each shard has an eighth of the training nodes.",
    ),
    Claim(
        "Influence+ and Fisher+ cost accuracy",
        "Table 1, observation 3",
        "They have around 2 and 7 % performance degradation, since a stronger regularization is required.",
        _compared(
            "injection",
            "accuracy_after",
            tuple((name, RETRAINED) for name in _APPROXIMATE),
            lambda first, second: second - first - _POINT,
            times=100,
            unit=" %",
        ),
        "Counted from one point on, at the same lambda for all, 1e-4, and with noise of the size that Chien et al. "
        "publish; the loss goes with both.",
    ),
    Claim(
        "They cost accuracy at the lambda that suits each",
        "Table 1, observation 3",
        "… because a stronger regularization is required to stabilize the unlearning process.",
        _chosen,
        "Lambda is the one among 1e-6 to 1e-2 that classifies validation nodes best, before and after together.",
    ),
    Claim(
        "The projection is slightly better than retraining",
        "Table 1, observation 5",
        "Projector is around 0.04 to 0.2 % better than retraining.",
        _compared(
            "injection",
            "accuracy_after",
            ((LETHE, RETRAINED), ("lethe, projection, with diffusion", "retraining, with diffusion")),
            lambda first, second: first - second,
            times=100,
            unit=" %",
        ),
        "What is kept of the deleted nodes' labels beside the lost direction can help or hurt; here trained to the "
        "optimum both times.",
    ),
    Claim(
        "The projection’s weights are closest to retraining",
        "Figure 3, column 4",
        "The output parameters of Projector are closer to those of retraining than the baselines'.",
        _compared("closeness", "weights", tuple((LETHE, other) for other in _BASELINES), _smaller, ("0.01",)),
        "Of the baselines as published, with noise of a size that is theirs to choose (deviation 0.1, and 0.01 for "
        "Fisher+), which is most of their distance; the next claim is without it.",
    ),
    Claim(
        "The projection is closer to retraining than a Newton step",
        "Figure 3 and Proposition 2",
        "Projector's output is provably closer to retraining than Influence and Fisher.",
        _compared("closeness", "weights", ((LETHE, "fisher+, without noise"),), _smaller, ("0.01",)),
        "A Newton step goes most of the way to the retrained weights; the projection, where no direction is lost, "
        "none of it.",
    ),
    Claim(
        "The projection’s answers are closest to retraining",
        "Figure 3, columns 1 to 3",
        "The final activations of Projector are closer to retraining, on deleted, remaining and test nodes.",
        lambda results: [
            case
            for figure in ("deleted", "remaining", "test")
            for case in _compared(
                "closeness", figure, tuple((LETHE, other) for other in _BASELINES), _smaller, ("0.01",)
            )(results)
        ],
        "On the deleted nodes the unchanged weights still know the label.",
    ),
    Claim(
        "Fewer deletions end closer to retraining",
        "Figure 3 and Theorem 1",
        "A lower unlearning percentage leads to a smaller difference of the weights.",
        _growing,
        "Means over the seeds, each of which deletes other nodes at each share.",
    ),
    Claim(
        "Adaptive diffusion always helps",
        "Table 1, observation 4",
        "Adaptive diffusion provides consistent performance boosting to linear GNN models.",
        _compared(
            "accuracy",
            "accuracy",
            (("+ diffusion", "linear"),),
            lambda first, second: first - second,
            times=100,
            unit=" %",
        ),
        "Trained to the optimum, without a channel; the injection test has it with one.",
    ),
    Claim(
        "An MLP raises accuracy",
        "Table 2, observation 1",
        "Using an MLP as a feature extractor can improve the average accuracy.",
        _compared(
            "accuracy",
            "accuracy",
            (("+ MLP, 10 % public", "linear"), ("+ MLP, 50 % public", "linear")),
            lambda first, second: first - second,
            times=100,
            unit=" %",
        ),
        "Here the MLP is trained on nodes that are never deleted, a tenth or half of the training nodes; the paper's "
        "on all but the deleted, who would have to be known beforehand.",
    ),
    Claim(
        "An MLP makes accuracy vary",
        "Table 2, observation 1",
        "… but it also increases the variance of the model performance.",
        _deviation,
        "Standard deviations over seeds, in points.",
    ),
    Claim(
        "The linear model is better than ordinary GNNs",
        "Table 2, observation 2",
        "Linear GNNs could achieve better performance than ordinary GNNs.",
        _compared(
            "accuracy",
            "accuracy",
            tuple(("+ diffusion", name) for name in _NETWORKS),
            lambda first, second: first - second,
            times=100,
            unit=" %",
        ),
        "Two layers with the settings of torch-geometric's examples, which were made for Planetoid's small split.",
    ),
    Claim(
        "GraphEraser hurts ordinary GNNs",
        "Table 2, observation 3",
        "Employing GraphEraser with non-linear GNNs will significantly hurt the original models.",
        _compared(
            "injection",
            "accuracy_before",
            tuple(
                (f"graph eraser, {network}, {cut}, {kind}", network)
                for network in ("gcn", "sage", "gat")
                for cut in ("bekm", "blpa", "metis")
                for kind in ("mean", "learned")
            ),
            lambda first, second: second - first - _POINT,
            times=100,
            unit=" %",
        ),
        "Counted from one point on, with 8 shards.",
    ),
    Claim(
        "Certified removal keeps accuracy",
        "Chien et al. 2023, abstract",
        "200 of Cora's 1,208 training nodes removed at (1, 1e-4): 0.1 % less test accuracy.",
        _stream_accuracy,
        "Beside retraining with the same noise, which costs accuracy of its own; twice as much still counts.",
    ),
    Claim(
        "Certified removal is four times as fast",
        "Chien et al. 2023, abstract",
        "… and four times as fast as retraining after each.",
        _stream_speed,
        "Their retraining is by L-BFGS on a GPU; ours by Newton's method, which takes tens of steps.",
    ),
    Claim(
        "Accuracies on ogbn-arxiv",
        "Tables 1, 2 and 6",
        "73.35 ± 0.12 with diffusion, 73.41 ± 0.31 with an MLP as well.",
        None,
        "OGB's 128 features are not at hand. The arXiv graph here has a language model's guesses as features, which "
        "are close to the labels: its accuracies are no reproduction.",
    ),
    Claim(
        "Everything on ogbn-products, Flickr and Reddit",
        "Tables 1, 2, 4 and 6",
        "Accuracies, times and the deletion of dense and sparse nodes.",
        None,
        "No copy of these datasets can be reached.",
    ),
    *(
        Claim(name, where, text, lambda results: (), "Its experiment is not written yet.")
        for name, where, text in (
            ("The projection is robust", "Figure 4", "From 1 to 20 % deleted its accuracy changes less than GNNs'."),
            ("delta is small", "Table 3", "0.2984 on Cora, 0.0049 on Pubmed, beside means of 0.6923 and 0.5546."),
            ("Membership inference sees the deletion", "Table 5", "46 to 58 % on Cora, 47 to 67 % on Citeseer."),
            ("Fine-tuning adds little", "Table 6, Figure 6", "Accuracies before and after it are close."),
            ("The bound of Theorem 1", "Theorem 1", "The distance to retraining is at most Delta."),
            ("Proposition 2's condition", "Proposition 2", "It is very likely satisfied in practice."),
            ("Expressiveness", "Proposition 3", "Distinct eigenvalues and no zero row of U X suffice."),
            ("Unlearning without modification", "Appendix E", "A zero dual variable leaves the solution as it is."),
        )
    ),
)
