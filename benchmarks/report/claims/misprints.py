"""Formulas that the paper misprints, each with the test that shows it."""

from benchmarks.paper.setting import SMOOTHED_HINGE
from benchmarks.report.claims.robustness import of_machines
from benchmarks.report.claims.theory_judging import rows_as_bounded
from benchmarks.report.claims.verdicts import Claim, Source

#: Limit on the signed sum of alpha_i, relative to the sum of |alpha_i|: what rounding could leave of 0.
_BALANCED = 1e-6

CLAIMS = (
    Claim(
        "Option 2’s matrix",
        "Section 3.2, Algorithm 1",
        "S = X_D^T [I - X_D X_D^T] X_D in M_remain^+ = M^+ + M^+ S M^+.",
        lambda results: [],
        "Woodbury's identity has [I - X_D M^+ X_D^T]^-1 in the middle. With the printed S the result does not project.",
        "baselines/test_printed.py::test_option_2_is_the_printed_formula_and_no_projection",
        general=True,
        source=Source.MISPRINTS,
    ),
    Claim(
        "The appendix’ influence equation",
        "Appendix on dependency",
        "w_affect = w* + H^-1 v, with v the gradient of what is given back less that of what is taken away; before it "
        "w* + [H - H_n] g_n for independent rows.",
        lambda results: [],
        "The line above it, 0 = v + H (w - w*), gives w = w* - H^-1 v. As printed, the step goes away from retraining. "
        "For independent rows the Hessian’s inverse is missing.",
        "baselines/test_influence.py::test_influence_plus_is_the_appendix_equation_with_its_sign_put_right",
        general=True,
        source=Source.MISPRINTS,
    ),
    Claim(
        "The norm of P^L’s rows in Theorem 1’s proof",
        "Theorem 1, proof",
        "|h_i| is at most B_x P_s, with P_s the largest 2-norm of a row of P^L.",
        rows_as_bounded,
        "|sum_j P_ij x_j| is at most B_x times the 1-norm of the row. With the 2-norm, the smoothness is "
        "underestimated, and the step of fine-tuning with it too long.",
        ""
        "test_smallest_examples.py::test_theorem_1_is_wrong_about_the_rows_of_three_linked_nodes_and_says_nothing_of_their_weights",
        general=True,
        source=Source.MISPRINTS,
    ),
    Claim(
        "The SVM’s dual",
        "Appendix on SVM",
        "… subject to sum alpha_i y_i = 0.",
        of_machines("imbalance", (SMOOTHED_HINGE,), lambda share: _BALANCED - share),
        "The constraint belongs to a bias, which the primal problem lacks. For a single point it leaves alpha = 0, "
        "while the primal solution is not 0. Measured: |sum alpha_i y_i| as a share of sum alpha_i, at the optimum.",
        ""
        "test_robustness.py::test_the_printed_dual_of_the_svm_gives_one_point_nothing_while_the_primal_solution_is_not_zero",
        general=True,
        source=Source.MISPRINTS,
    ),
    Claim(
        "The regularization of F^u",
        "Section 3.3",
        "f_i^u(w) = log(1 + exp(-y_i w^T h_i)) + lambda |w|_2.",
        lambda results: [],
        "Eq. 2 has lambda/2 |w|_2^2, and so have the gradients of the proof: the square and the half are missing.",
        "baselines/test_logistic.py::test_the_gradient_is_the_slope_of_the_value",
        general=True,
        source=Source.MISPRINTS,
    ),
    Claim(
        "The eigenvectors’ transpose",
        "Proposition 3",
        "P^{l-1} X = U Lambda^{l-1} U X, and no row of U X is zero.",
        lambda results: [],
        "P = U Lambda U^T, so it is U^T X in the proposition and in its proof.",
        "test_theory.py::test_what_a_linear_gnn_reaches_is_the_rank_of_all_powers",
        general=True,
        source=Source.MISPRINTS,
    ),
    Claim(
        "The sign of Proposition 2’s influence step",
        "Proposition 2, proof",
        "w_p = w(T) - H^-1 g, with g the gradient of the deleted nodes.",
        lambda results: [],
        "The appendix on baselines has plus, which is right: the deleted nodes’ gradient is taken out.",
        "baselines/test_influence.py::test_influence_is_guo_and_others_step_with_the_rows_as_they_were",
        general=True,
        source=Source.MISPRINTS,
    ),
)

#: Statements of the paper that its own formulas or tables contradict: where, what it states, what contradicts it.
INCONSISTENCIES = (
    (
        "Section 3.1 and Assumption 2",
        "V_remain is V_train without V_delete (Section 3.1).",
        "V_remain is V without V_delete (Assumption 2).",
    ),
    (
        "Table 1, observation 3",
        "GraphEraser loses around 4 % on ogbn-arxiv.",
        "2.9 and 3.2 points (73.42 less 70.56, 73.40 less 70.23).",
    ),
    (
        "Table 1, observation 3",
        "Influence+ and Fisher+ lose around 2 % on ogbn-arxiv.",
        "0.7 points after unlearning (73.42 less 72.73, 73.40 less 72.65).",
    ),
    (
        "Table 4, observation 2",
        "Removing dense nodes improves Reddit by around 1 %.",
        "The largest gain is 0.37 points (94.72 to 95.09); GCN loses 0.09 (93.04 to 92.95).",
    ),
    (
        "Table 4, observation 2",
        "Removing dense nodes hurts Flickr by around 1 to 2 %.",
        "0.7 points with GCN, 3.5 with the retrained linear model.",
    ),
    (
        "Table 4, observation 3",
        "Projector is around 0.06 to 0.1 % better than retraining.",
        "1.42 points on Flickr with dense nodes deleted (50.63 against 49.21).",
    ),
)
