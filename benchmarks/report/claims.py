"""The paper's claims, each with the rule by which results judge it, and what has to be known to read the verdict."""

from benchmarks.baselines.catalogue import NETWORKS
from benchmarks.paper.experiments import EXPERIMENTS
from benchmarks.report.judging import (
    APPROXIMATE,
    POINT,
    Claim,
    accuracies,
    at_chosen_lambda,
    better,
    channel,
    compared,
    costs,
    deviation_with_mlp,
    growing,
    smaller,
    stream_accuracy,
    stream_speed,
)
from benchmarks.report.results import LETHE, RETRAINED
from benchmarks.report.robustness import CLAIMS as ROBUSTNESS
from benchmarks.report.theory import CLAIMS as THEORY

_PRINTED = "projector, option 1 as printed"
_NOISELESS = ("fisher+, without noise", "influence+, authors' code")
_ERASERS = tuple(name for name in EXPERIMENTS["closeness"].methods if name.startswith("graph eraser"))
_BASELINES = (*APPROXIMATE, "influence", *_ERASERS)

CLAIMS = (
    Claim(
        "The projection takes the injected channel away",
        "Table 1, observation 1",
        "Projector can perfectly unlearn the deleted nodes and sets the extra feature's weight to zero.",
        channel((LETHE, _PRINTED), gone=True),
        "Only the deleted nodes support that direction, so any projection on the others' span removes it.",
    ),
    Claim(
        "GraphEraser takes it away as well",
        "Table 1, observation 1",
        "GraphEraser can perfectly unlearn the deleted nodes.",
        channel(_ERASERS, gone=True),
        "Its shards are trained anew; how the other shards were cut still depends on the deleted nodes.",
    ),
    Claim(
        "Influence+ and Fisher+ leave some of it",
        "Table 1, observation 1",
        "Influence+ and Fisher+ cannot fully unlearn the correlation because they are approximate.",
        channel(APPROXIMATE, gone=False),
        "What is left is their noise, as large as along any direction without data: see the next claim.",
    ),
    Claim(
        "Influence+ and Fisher+ leave it because they approximate",
        "Table 1, observation 1",
        "… because they are approximate unlearning methods.",
        channel(_NOISELESS, gone=False),
        "Without noise a Newton step sets the channel to 0 exactly: no remaining row has a part along it, and the "
        "regularization alone is quadratic there. The test sees the noise, not the approximation. (Of methods that "
        "update neighbours; for Influence see the next claim.)",
        "test_smallest_examples.py::test_a_newton_step_without_noise_takes_the_channel_away_though_it_approximates",
    ),
    Claim(
        "Neighbours have to be updated as well",
        "Figure 1 and Appendix on dependency",
        "Deleting a node changes its neighbours' rows, so that methods for independent rows cannot be used as such.",
        compared("injection", "channel_norm_after", (("influence+", "influence"),), smaller),
        "Influence+ exchanges neighbours' rows, Influence does not: with the same noise it keeps more of the channel.",
    ),
    Claim(
        "Options 1 and 2 of Algorithm 1 are the same",
        "Section 3.2, Algorithm 1",
        "Two different types of input are available that lead to identical results.",
        compared(
            "closeness",
            "weights",
            (("projector, option 2 as printed", _PRINTED),),
            lambda first, second: 1e-3 - abs(first - second),
        ),
        "Option 2's matrix is not the Woodbury identity, whose middle is [I - X_D M+ X_D^T]^-1.",
        "baselines/test_printed.py::test_option_2_is_the_printed_formula_and_no_projection",
    ),
    Claim(
        "The projection takes less time than every baseline",
        "Table 1, observation 2",
        "Projector requires less time to unlearn because it is a one-shot approach.",
        compared("injection", "times_lethe", tuple((LETHE, other) for other in (*_BASELINES, RETRAINED)), smaller),
        "As multiples of what Lethe's projection takes in the same run, predictions included; retraining is by "
        "Newton's method instead of epochs of descent. GraphEraser's BEKM, which sees the mark as well, gathers the "
        "deleted nodes in a shard or two: often little or nothing is left there to be trained.",
        "test_smallest_examples.py::test_a_projection_handles_more_numbers_than_training_anew_where_features_are_many",
    ),
    Claim(
        "The paper’s own form of it takes less time too",
        "Table 1, observation 2",
        "… with Option 1 as printed, which factorises the remaining rows' Gram matrix.",
        compared("injection", "times_lethe", tuple((_PRINTED, other) for other in (*_BASELINES, RETRAINED)), smaller),
        "As multiples of Lethe's projection in the same run. A pseudo-inverse costs d^3: with many features and few "
        "nodes that is more than training.",
        "test_smallest_examples.py::test_a_projection_handles_more_numbers_than_training_anew_where_features_are_many",
    ),
    Claim(
        "GraphEraser costs accuracy",
        "Table 1, observation 3",
        "GraphEraser has around 4 and 9 % performance degradation due to graph partitioning.",
        accuracies("injection", "accuracy_after", tuple((name, RETRAINED) for name in _ERASERS), costs),
        "Counted from one point on; each shard has an eighth of the training nodes. Those of BEKM, cut by the outputs "
        "of a GraphSAGE, mostly hold one class, and a model of one class knows no other.",
        "test_smallest_examples.py::test_an_eraser_costs_no_accuracy_where_classes_have_features_of_their_own",
    ),
    Claim(
        "Influence+ and Fisher+ cost accuracy",
        "Table 1, observation 3",
        "They have around 2 and 7 % performance degradation, since a stronger regularization is required.",
        accuracies("injection", "accuracy_after", tuple((name, RETRAINED) for name in APPROXIMATE), costs),
        "Counted from one point on, at the same lambda for all, 1e-4, and with noise of the size that Chien et al. "
        "publish; the loss goes with both.",
        "test_smallest_examples.py::test_noise_costs_no_accuracy_where_classes_have_features_of_their_own",
    ),
    Claim(
        "They cost accuracy at the lambda that suits each",
        "Table 1, observation 3",
        "… because a stronger regularization is required to stabilize the unlearning process.",
        at_chosen_lambda,
        "Lambda is the one among 1e-6 to 1e-2 that classifies validation nodes best, before and after together.",
        "test_smallest_examples.py::test_noise_costs_no_accuracy_where_classes_have_features_of_their_own",
    ),
    Claim(
        "At a small lambda they predict nothing meaningful",
        "Appendix on baselines",
        "When lambda is small, the unlearned model cannot generate meaningful predictions.",
        accuracies(
            "regularization",
            "accuracy_after",
            tuple((name, RETRAINED) for name in APPROXIMATE),
            lambda first, second: costs(first, second) - 9 * POINT,
            cases=("1e-06",),
        ),
        "At the paper's own 1e-6, counted from ten points on; the noise is divided by roots of lambda.",
    ),
    Claim(
        "The projection is slightly better than retraining",
        "Table 1, observation 5",
        "Projector is around 0.04 to 0.2 % better than retraining.",
        accuracies(
            "injection",
            "accuracy_after",
            ((LETHE, RETRAINED), ("lethe, projection, with diffusion", "retraining, with diffusion")),
            better,
        ),
        "What is kept of the deleted nodes' labels beside the lost direction can help or hurt; here trained to the "
        "optimum both times.",
        "test_robustness.py::test_the_projection_can_be_worse_than_retraining",
    ),
    Claim(
        "The projection’s weights are closest to retraining",
        "Figure 3, column 4",
        "The output parameters of Projector are closer to those of retraining than the baselines'.",
        compared("closeness", "weights", tuple((LETHE, other) for other in _BASELINES), smaller, ("0.01",)),
        "Of the baselines as published, with noise of a size that is theirs to choose (deviation 0.1, and 0.01 for "
        "Fisher+), which is most of their distance and falls with the number of training nodes; the next claim is "
        "without it.",
        "test_smallest_examples.py::test_a_newton_step_is_closer_to_retraining_where_the_projection_changes_nothing",
    ),
    Claim(
        "The projection is closer to retraining than a Newton step",
        "Figure 3 and Proposition 2",
        "Projector's output is provably closer to retraining than Influence and Fisher.",
        compared("closeness", "weights", ((LETHE, "fisher+, without noise"),), smaller, ("0.01",)),
        "A Newton step goes most of the way to the retrained weights; the projection, where no direction is lost, "
        "none of it.",
        "test_smallest_examples.py::test_a_newton_step_is_closer_to_retraining_where_the_projection_changes_nothing",
    ),
    Claim(
        "The projection’s answers are closest to retraining",
        "Figure 3, columns 1 to 3",
        "The final activations of Projector are closer to retraining, on deleted, remaining and test nodes.",
        lambda results: [
            case
            for figure in ("deleted", "remaining", "test")
            for case in compared(
                "closeness", figure, tuple((LETHE, other) for other in _BASELINES), smaller, ("0.01",)
            )(results)
        ],
        "On the deleted nodes the unchanged weights still know the label.",
        "test_smallest_examples.py::test_a_newton_step_is_closer_to_retraining_where_the_projection_changes_nothing",
    ),
    Claim(
        "Fewer deletions end closer to retraining",
        "Figure 3 and Theorem 1",
        "A lower unlearning percentage leads to a smaller difference of the weights.",
        growing,
        "Means over the seeds, each of which deletes other nodes at each share.",
        "test_smallest_examples.py::test_more_deletions_can_end_closer_to_retraining",
    ),
    Claim(
        "Adaptive diffusion always helps",
        "Table 1, observation 4",
        "Adaptive diffusion provides consistent performance boosting to linear GNN models.",
        accuracies("accuracy", "accuracy", (("+ diffusion", "linear"),), better),
        "Trained to the optimum, without a channel; the injection test has it with one.",
        "test_smallest_examples.py::test_adaptive_diffusion_sees_no_degrees",
    ),
    Claim(
        "An MLP raises accuracy",
        "Table 2, observation 1",
        "Using an MLP as a feature extractor can improve the average accuracy.",
        accuracies(
            "accuracy", "accuracy", (("+ MLP, 10 % public", "linear"), ("+ MLP, 50 % public", "linear")), better
        ),
        "Here the MLP is trained on nodes that are never deleted, a tenth or half of the training nodes; the paper's "
        "on all but the deleted, who would have to be known beforehand.",
        "test_smallest_examples.py::test_an_mlp_forgets_the_words_that_no_public_node_has",
    ),
    Claim(
        "An MLP makes accuracy vary",
        "Table 2, observation 1",
        "… but it also increases the variance of the model performance.",
        deviation_with_mlp,
        "Standard deviations over five seeds, in points.",
    ),
    Claim(
        "The linear model is better than ordinary GNNs",
        "Table 2, observation 2",
        "Linear GNNs could achieve better performance than ordinary GNNs.",
        accuracies("accuracy", "accuracy", tuple(("+ diffusion", name) for name in NETWORKS), better),
        "Two layers as in torch-geometric's examples, which were made for Planetoid's small split; GCN of 64 units.",
        "test_robustness.py::test_a_network_can_be_better_than_every_linear_model",
    ),
    Claim(
        "GraphEraser hurts ordinary GNNs",
        "Table 2, observation 3",
        "Employing GraphEraser with non-linear GNNs will significantly hurt the original models.",
        accuracies(
            "injection",
            "accuracy_before",
            tuple(
                (f"graph eraser, {network}, {cut}, {kind}", network)
                for network in ("gcn", "sage", "gat")
                for cut in ("bekm", "blpa", "metis")
                for kind in ("mean", "learned")
            ),
            costs,
        ),
        "Counted from one point on, with 8 shards.",
        "test_smallest_examples.py::test_an_eraser_does_not_hurt_a_network_where_classes_have_features_of_their_own",
    ),
    Claim(
        "Certified removal keeps accuracy",
        "Chien et al. 2023, abstract",
        "200 of Cora's 1,208 training nodes removed at (1, 1e-4): 0.1 % less test accuracy.",
        stream_accuracy,
        "Beside retraining with the same noise, which costs accuracy of its own; twice as much still counts.",
    ),
    Claim(
        "Certified removal is four times as fast",
        "Chien et al. 2023, abstract",
        "… and four times as fast as retraining after each.",
        stream_speed,
        "Their retraining is by L-BFGS on a GPU; ours by Newton's method, which takes tens of steps.",
        "test_smallest_examples.py::test_certified_removal_trains_anew_each_time_where_nodes_are_few",
    ),
    *ROBUSTNESS,
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
        "No copy of these datasets can be reached. The deletion of dense and sparse nodes is measured on others.",
    ),
    *THEORY,
)
