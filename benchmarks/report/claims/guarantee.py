"""The paper's claims on what its construction guarantees, and how results judge them."""

from benchmarks.attacks.lira import CHANCE
from benchmarks.paper.inference.lira import NEVER_THERE_QUESTION
from benchmarks.report.claims.judging import READINGS, all_of, for_each
from benchmarks.report.claims.verdicts import Case, Claim, Judge
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
            words += "left every weight as it was."
            cases.append(Case((0.5 - unchanged) / draws, words, f"deletions, {called(dataset)}"))
    return cases


def unrecognised(method: str) -> Judge:
    """Judge whether chance lies in U-LiRA's interval for unlearned against never-there nodes."""

    def judge(results: Results) -> list[Case]:
        cases = []
        for dataset in results.datasets("lira"):
            for case in (each for each in results.cases("lira", dataset) if each.endswith(NEVER_THERE_QUESTION)):
                key = ("lira", dataset, method, case)
                figures = (results.values(*key, each) for each in ("models", "auc", "auc_low"))
                for models, area, low in zip(*figures, strict=True):
                    words = f"{called(dataset)}, U-LiRA, {case}, {method}: {models:.0f} models, area {100 * area:.1f} "
                    words += f"%, interval from {100 * low:.1f} %."
                    cases.append(Case(CHANCE["auc"] - low, words, called(dataset)))
        return cases

    return judge


CLAIMS = (
    Claim(
        "Trained weights lie in the span of all nodes’ features",
        "Section 3.2 (precondition)",
        "With weight initialization in the span: regardless of how many steps of gradient updates, w is in "
        "span{x_1, …, x_n}.",
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
        "One line of the proof misprints Woodbury’s identity; its end is right.",
        shown="benchmarks/baselines/test_printed.py::test_option_1_projects_on_the_remaining_training_nodes",
        remaining="It holds for both readings. The test takes training nodes; Lethe takes all live nodes.",
    ),
    Claim(
        "The projected weights are a combination of the remaining features",
        "Section 3.2 and Appendix on differential privacy",
        "The support of the unlearned weights does not include the deleted nodes’ features, by the algorithm’s design.",
        lambda results: [],
        "After every batch the test expresses the weights by the rows that are left on disk. It needs no noise.",
        shown="projector/forgetting/test_forgetting.py::"
        "test_the_surviving_rows_on_disk_explain_the_weights_after_every_batch",
        remaining="It holds for both readings: the support is the training nodes, or all live nodes as in the test.",
    ),
    Claim(
        "The unlearned weights contain no information about the deleted features",
        "Abstract and contributions",
        "The unlearned model parameters do not contain any information about the unlearned node features, which is "
        "guaranteed by algorithmic construction.",
        all_of(
            never_unchanged,
            for_each({f"U-LiRA, {each}": method for each, method in READINGS.items()}, unrecognised),
        ),
        "The construction guarantees only the previous claim: the weights combine the remaining features. How they "
        "combine them still depends on the deleted nodes. Where the remaining rows span every direction, the "
        "projection changes no weight. A random deletion counts for the claim if some weight changed, which does not "
        "show that the information is gone. U-LiRA is an attacker who separates models that unlearned a node from "
        "models that never had it. A group of random deletions covers three shares of the nodes. A group of U-LiRA "
        "covers every graph and loss measured. All nodes of the counterexample are training nodes, so it contradicts "
        "the claim in both readings of “remaining”.",
        "test_robustness.py::test_where_no_direction_is_lost_the_projection_hides_nobody",
        general=True,
        remaining="Random deletions: all live nodes; for training nodes see “What we found ourselves”. U-LiRA: both.",
    ),
    Claim(
        "The projection bypasses node dependency",
        "Abstract and Section 3.2 (why node dependency is bypassed)",
        "The projection is applied to the input node features, and node dependencies are only in the weights mu_j of "
        "the finite sum.",
        lambda results: [],
        "The computation reads features and weights, and no edge. The edges’ traces are another matter: the weights "
        "were learned with the deleted nodes’ edges, and the coefficients still depend on them.",
        shown="benchmarks/baselines/test_printed.py::test_no_projection_reads_an_edge",
    ),
    Claim(
        "With nothing deleted, the weights stay",
        "Section 3.3, with Section 3.1 and Assumption 2",
        "With |V_delete| = 0 we have P_d = delta = G = 0 and w_p = w = w_u.",
        # Algebra for each reading, which the test checks.
        lambda results: [
            Case(1.0, "All nodes remain: the projection is the identity on the weights.", "all live nodes remain"),
            Case(-1.0, "Training nodes remain: the projection removes what only others have.", "training nodes remain"),
        ],
        "If all nodes remain, as Assumption 2 prints it, the span is the one that the weights lie in. If training "
        "nodes alone remain, as Section 3.1 prints it, the projection removes directions of validation and test nodes "
        "though nobody left.",
        "baselines/test_printed.py::test_with_nothing_deleted_the_weights_stay_only_if_all_nodes_remain",
        remaining="Both readings; the groups name them.",
    ),
    Claim(
        "Option 1 takes O(r d^2) and O(d^3)",
        "Section 3.2",
        "The significant computation is X_remain^T X_remain in O(r d^2) and its inverse in O(d^3).",
        lambda results: [],
        "The test counts the operations on dense rows, and the pseudo-inverse is of a d by d matrix. Rows with few "
        "entries take less.",
        shown="benchmarks/baselines/test_printed.py::test_option_1_takes_r_d2_for_its_rows_and_inverts_a_d_by_d_matrix",
    ),
    Claim(
        "The projection applies to the output of an MLP",
        "Section 3.4",
        "With an MLP trained on public nodes, only the linear GNN needs to be unlearned, by applying Projector onto "
        "the MLP’s output.",
        lambda results: [],
        "The weights lie in the span of the MLP’s outputs, as they do in that of plain features. It needs public nodes "
        "that are never deleted; the MLP itself forgets nobody.",
        shown="projector/training/test_mlp.py::test_a_model_on_an_mlp_lies_in_the_span_of_its_outputs",
    ),
    Claim(
        "Closeness to retraining does not show that data is deleted",
        "Appendix on closeness and Appendix on differential privacy",
        "One cannot infer whether the data have been deleted solely from the closeness of the unlearned to the "
        "retrained model; so differential privacy does not suffice for perfect removal.",
        lambda results: [],
        "Weights as close to retraining as you like can still hold a channel that only the deleted nodes had. The "
        "paper’s own argument for it, Theorem 2, is wrong (see there).",
        shown="benchmarks/baselines/test_printed.py::test_weights_close_to_retraining_can_hold_the_channel",
    ),
    Claim(
        "No bound like that of differential privacy can be shown for Projector",
        "Appendix on differential privacy, question 2",
        "Since the method is exact unlearning it needs no random noise, and therefore this kind of inequality cannot "
        "be shown for it.",
        lambda results: [],
        "If training draws nothing at random, the projected and the retrained weights are two points. Where they "
        "differ, no delta below 1 is enough, whatever epsilon is. Exactness is not the reason: retraining is exact and "
        "meets the definition with epsilon = delta = 0. The projection does not, since it ends elsewhere.",
        shown=""
        "benchmarks/test_robustness.py::test_without_noise_the_projection_has_no_privacy_bound_and_retraining_has",
        remaining="All nodes of the example are training nodes, so both readings agree.",
    ),
    Claim(
        "The output is retraining under some importance sampling",
        "Section 3.2, and Table 4, observation 3",
        "The output of Projector could be interpreted as re-training on the remaining graph under some unknown "
        "importance sampling distribution.",
        lambda results: [],
        "No such distribution exists where the projected weights point away from every remaining label. In the "
        "smallest example the remaining nodes are of one class, and the projected weights predict the other.",
        "test_robustness.py::test_no_weighting_of_the_remaining_nodes_leads_to_the_projected_weights",
        general=True,
        remaining="All nodes of the example are training nodes, so both readings agree.",
    ),
)
