"""The paper's claims on the feature injection test (Table 1), and how results judge them."""

from collections.abc import Sequence
from statistics import fmean

from benchmarks.baselines.catalogue import METHODS
from benchmarks.paper.forgetting import early
from benchmarks.paper.setting import ARXIV
from benchmarks.report.claims.judging import (
    APPROXIMATE,
    BOTH,
    EARLY,
    EARLY_INJECTED,
    EARLY_READINGS,
    EARLY_RETRAINED,
    GONE,
    LIVE,
    NEWTON,
    POINT,
    PRINTED,
    READINGS,
    accuracies,
    all_of,
    best_lambda,
    better,
    compared,
    costs,
    decided_by,
    grouped,
    of_graph,
    over_seeds,
    place,
    smaller,
)
from benchmarks.report.claims.verdicts import Case, Claim, Judge
from benchmarks.report.results import LETHE, REPAIRED, RETRAINED, Results, apart, by, called, number, shared

_OFFICIAL = "projector, official code"
_NOISELESS = ("fisher+, without noise", "influence+, authors' code")
#: On the linear model, as in Table 1.
LINEAR_ERASERS = tuple(name for name in METHODS if name.startswith("graph eraser, linear"))
_METIS = "graph eraser, linear, metis, mean"
#: The paper's baselines, without the erasers that gather deleted nodes in few shards.
_OTHERS = (*APPROXIMATE, *(each for each in LINEAR_ERASERS if "bekm" not in each), RETRAINED)
_DIFFUSED = "lethe, projection, with diffusion"
_BOTH_DIFFUSED = (_DIFFUSED, "retraining, with diffusion")


def channel(methods: Sequence[str], *, gone: bool, experiment: str = "injection") -> Judge:
    """Judge whether these methods remove the weight of the injected channel, or keep it."""

    def judge(results: Results) -> list[Case]:
        cases = []
        for dataset in results.datasets(experiment):
            for method in methods:
                for share in results.cases(experiment, dataset):
                    key = (experiment, dataset, method, share)
                    before = results.values(*key, "channel_norm_before")
                    after = results.values(*key, "channel_norm_after")
                    if not before:
                        continue
                    margin, first, last = min(
                        ((GONE - last / first) * (1 if gone else -1), first, last)
                        for first, last in zip(before, after, strict=True)
                    )
                    where = f"{place(dataset, share)}, {method}, {decided_by(len(before))}"
                    cases.append(Case(margin, f"{where}: from {number(first)} to {number(last)}.", called(dataset)))
        return cases

    return judge


def _useless(first: float, second: float) -> float:
    """Return how far the first accuracy falls short by more than ten points."""
    return costs(first, second) - 9 * POINT


def at_chosen_lambda(results: Results) -> list[Case]:
    """Compare Influence+ and Fisher+ with retraining, each at the lambda that validation nodes choose for it."""
    cases = []
    for dataset in results.datasets("regularization"):
        chosen = {each: best_lambda(results, dataset, each) for each in (*APPROXIMATE, RETRAINED)}
        for method in APPROXIMATE:
            pair = [(each, chosen[each]) for each in (method, RETRAINED)]
            found = [
                results.by_seed("regularization", dataset, each, best, "accuracy_after") if best else {}
                for each, best in pair
            ]
            seeds = shared(*found)
            if seeds:
                means = [100 * fmean(each) for each in zip(*seeds, strict=True)]
                shares = zip(pair, apart(means, " %"), strict=True)
                words = ", ".join(f"{each} {share} at lambda {best}" for (each, best), share in shares)
                words = f"{called(dataset)}, 5 %, {by(len(seeds))}: {words}."
                cases.append(over_seeds(costs, seeds, words, called(dataset)))
    return cases


#: How our training differs from the paper's.
OPTIMUM = "Every model is trained to its optimum at lambda 1e-4; the paper stops SGD early at 1e-6."
#: Both trainings were measured.
BOTH_TRAININGS = (
    "Groups named “stopped early” are trained as in the paper, at the lambda they name, and without noise; all others "
    "to the optimum, at lambda 1e-4 unless their name gives another."
)
#: The paper has a larger lambda for these two.
_LARGER = (
    "The paper stops SGD early. It does not print its lambda for Influence+ and Fisher+, which is larger than 1e-6; "
    "its code has 1e-2 on Cora and Pubmed, and 1e-3 on Citeseer."
)
_OGB = "The paper’s figures are of ogbn-arxiv and ogbn-products, which cannot be had here."

CLAIMS = (
    Claim(
        "Projector and GraphEraser set the injected channel to zero",
        "Table 1, observation 1",
        "GraphEraser and Projector can perfectly unlearn the deleted nodes and set the extra-feature channel to zero "
        "(56.8 → 0, 30.6 → 0).",
        all_of(
            channel((LETHE, REPAIRED, _DIFFUSED, PRINTED, _OFFICIAL, RETRAINED, *LINEAR_ERASERS), gone=True),
            grouped("stopped early", channel((early.LIVE, early.OPTION_1), gone=True, experiment=EARLY)),
        ),
        "Only the deleted nodes support that direction, so the projection on the others’ span removes it by "
        "construction. Retraining never sees it, and an eraser trains those shards again. How an eraser’s other shards "
        "were cut still depends on the deleted nodes.",
        setting=BOTH_TRAININGS,
        remaining="Both readings: all live nodes (Lethe, the official code), training nodes alone (Option 1).",
    ),
    Claim(
        "Influence+ and Fisher+ keep some of it because they approximate",
        "Table 1, observation 1",
        "Influence+ and Fisher+ cannot fully unlearn the correlation because they are approximate unlearning methods.",
        all_of(
            grouped("with their noise", channel(APPROXIMATE, gone=False)),
            grouped("without noise", channel(_NOISELESS, gone=False)),
            *(
                grouped(
                    f"stopped early, {name}",
                    channel([early.at(method, each) for each in early.LAMBDAS], gone=False, experiment=EARLY),
                )
                for name, method in NEWTON.items()
            ),
        ),
        "As published, with noise, they keep some of it. At the optimum the same steps without noise remove it. So "
        "what stays there comes from the noise, not from the approximation: no remaining row has a part along the "
        "channel, and the objective is quadratic there. Where training stopped early, the gradient on all rows is not "
        "zero. Influence+ assumes that it is, and its step misses the channel. Fisher+ steps by the whole gradient and "
        "removes it. The authors’ code adds no noise, but its loop over the classes stops before the injected class, "
        "whose weights it never updates. The paper prints 29.2 → 14.1 for both methods.",
        "test_smallest_examples.py::test_a_newton_step_without_noise_takes_the_channel_away_though_it_approximates",
        setting=f"{BOTH_TRAININGS} {_LARGER}",
    ),
    Claim(
        "Projector takes less time than every baseline",
        "Table 1, observation 2",
        "Projector requires less time to unlearn because it is a one-shot approach: 0.07 s against 0.3 to 1,973 s.",
        all_of(
            *(
                grouped(
                    form,
                    compared(
                        "injection", "times_lethe", tuple((name, other) for other in _OTHERS), smaller, unit=" units"
                    ),
                )
                for form, name in (
                    ("Option 1 as printed", PRINTED),
                    ("the official code", _OFFICIAL),
                    ("Lethe’s projection", LETHE),
                )
            )
        ),
        "One unit is the time of Lethe’s projection in the same run, predictions included. Lethe’s projection takes "
        "less time than most baselines; Option 1 as printed does in fewer than half of the cases, since its "
        "pseudo-inverse costs d^3. With many features and few nodes that is more than a Newton step. The "
        "baselines’ preparation before a deletion is not counted. GraphEraser with BEKM is left out: it clusters the "
        "outputs of a network that saw the mark, so the marked nodes fill one or a few shards, which then have little "
        "left to train.",
        "test_smallest_examples.py::test_a_projection_handles_more_numbers_than_training_anew_where_features_are_many",
        setting="Processor time; the paper has seconds on an RTX 3090. Retraining is by Newton’s method.",
        remaining="Both readings: training nodes in Option 1, all live nodes in the official code and in Lethe.",
    ),
    Claim(
        "GraphEraser, Influence+ and Fisher+ cost accuracy",
        "Table 1, observation 3",
        "Influence+ and Fisher+ have around 2 and 7 % performance degradation than re-training (ogbn-arxiv, -products) "
        "because a stronger regularization is required, and GraphEraser around 4 and 9 % due to graph partitioning.",
        all_of(
            *(
                grouped(
                    "GraphEraser, METIS and means, {}" if each == _METIS else "GraphEraser, other variants",
                    accuracies("injection", "accuracy_after", ((each, RETRAINED),), costs),
                )
                for each in LINEAR_ERASERS
            ),
            grouped(
                "Influence+ and Fisher+, all at lambda 1e-4",
                accuracies("injection", "accuracy_after", tuple((name, RETRAINED) for name in APPROXIMATE), costs),
            ),
            grouped("Influence+ and Fisher+, each at its own lambda", at_chosen_lambda),
            *(
                grouped(
                    f"stopped early, lambda {each}: Influence+ and Fisher+",
                    accuracies(
                        EARLY,
                        "accuracy_after",
                        tuple((early.at(method, each), EARLY_RETRAINED) for method in NEWTON.values()),
                        costs,
                        EARLY_INJECTED,
                    ),
                )
                for each in early.LAMBDAS
            ),
        ),
        "One sentence of the paper, so one verdict. A loss counts from one point on. The paper’s own variant of "
        "GraphEraser is METIS and means. Each shard has an eighth of the training nodes. BEKM cuts by the outputs of a "
        "GraphSAGE: most of its shards hold one class, and a model of one class cannot predict another. A method’s own "
        "lambda is the one among 1e-6 to 1e-2 that classifies validation nodes best, before and after together. "
        "Neither an eraser nor noise need cost accuracy "
        "(test_smallest_examples.py::test_noise_costs_no_accuracy_where_classes_have_features_of_their_own).",
        "test_smallest_examples.py::test_an_eraser_costs_no_accuracy_where_classes_have_features_of_their_own",
        setting=f"{_OGB} GraphEraser is measured at the optimum. {BOTH_TRAININGS} Retraining is at lambda 1e-6 there. "
        f"{_LARGER}",
    ),
    Claim(
        "At a small lambda they predict nothing meaningful",
        "Appendix on experiment setups",
        "When lambda is small, the unlearned model of Influence+ and Fisher+ cannot generate meaningful predictions.",
        all_of(
            *(
                grouped(
                    f"stopped early, {name}",
                    accuracies(EARLY, "accuracy_after", ((early.at(method, early.PAPERS), EARLY_RETRAINED),), _useless),
                )
                for name, method in NEWTON.items()
            ),
            grouped(
                "at the optimum, with noise",
                accuracies(
                    "regularization",
                    "accuracy_after",
                    tuple((name, RETRAINED) for name in APPROXIMATE),
                    _useless,
                    cases=("1e-06",),
                ),
            ),
        ),
        "At 1e-6, the paper’s lambda for the other methods. The paper does not define “meaningful”; here an accuracy "
        "ten points below retraining is not. Along directions without data, the noise of Influence+ is divided by "
        "lambda, that of Fisher+ by its fourth root.",
        "test_smallest_examples.py::test_noise_costs_no_accuracy_where_classes_have_features_of_their_own",
        setting="Groups named “stopped early” are trained as in the paper, without noise; the last group to the "
        "optimum. Lambda is 1e-6 in all.",
    ),
    Claim(
        "METIS and means are best for GraphEraser",
        "Appendix on baselines",
        "With different model aggregation and graph partition strategies its performance is not as good as the METIS "
        "partitioning and mean aggregation, on the more challenging OGB datasets.",
        of_graph(
            ARXIV,
            accuracies(
                "injection",
                "accuracy_after",
                tuple((_METIS, other) for other in LINEAR_ERASERS if other != _METIS),
                better,
            ),
        ),
        "On the only OGB graph at hand, with the linear model and one seed.",
        setting=f"The arXiv graph here has a language model’s features. {OPTIMUM}",
    ),
    Claim(
        "Projector is slightly better than retraining",
        "Table 1, observation 5, and Table 4, observation 3",
        "Projector is around 0.04 to 0.2 % better than re-training; 0.06 to 0.1 % for dense and sparse nodes.",
        all_of(
            *(
                grouped(name, accuracies(experiment, "accuracy_after", (pair,), better))
                for name, experiment, pair in (
                    *((f"Table 1, {reading}", "injection", (each, RETRAINED)) for reading, each in READINGS.items()),
                    ("Table 1, with diffusion, all live nodes remain", "injection", _BOTH_DIFFUSED),
                    ("Table 4, all live nodes remain", "degrees", (LETHE, RETRAINED)),
                )
            ),
            *(
                grouped(
                    f"Table 1, stopped early, {reading}",
                    accuracies(EARLY, "accuracy_after", ((each, EARLY_RETRAINED),), better, EARLY_INJECTED),
                )
                for reading, each in EARLY_READINGS.items()
            ),
        ),
        "On Citeseer the sign depends on the reading. At 5 and 10 % deleted, retraining has 75.5 and 75.2 %; the "
        "projection has 74.7 and 74.0 % if all live nodes remain, 76.0 and 75.5 % if training nodes alone do. On Cora "
        "both readings are below retraining; on the other graphs they agree to a tenth of a point. The weights keep a "
        "part of what the deleted nodes taught them, which can help or hurt.",
        "test_robustness.py::test_the_projection_can_be_worse_than_retraining",
        setting=f"The paper’s graphs are ogbn-arxiv, ogbn-products, Flickr and Reddit. {BOTH_TRAININGS}",
        remaining=f"{BOTH} With diffusion and in Table 4, training nodes alone were not measured.",
    ),
    Claim(
        "Adaptive diffusion helps consistently",
        "Table 1, observation 4",
        "Adaptive diffusion provides consistent performance boosting to linear GNN models (73.33 to 73.42).",
        all_of(
            *(
                accuracies("injection", f"accuracy_{when}", ((_DIFFUSED, LETHE),), better)
                for when in ("before", "after")
            ),
            accuracies("accuracy", "accuracy", (("+ diffusion", "linear"),), better),
        ),
        "In the injection test, before and after, and without a channel as well.",
        "test_smallest_examples.py::test_adaptive_diffusion_sees_no_degrees",
        setting=f"{_OGB} {OPTIMUM}",
        remaining=f"{LIVE} It matters only after the deletion.",
    ),
)
