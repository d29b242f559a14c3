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
        "0 = v + H (w - w*) stands one line above, so that w is w* - H^-1 v: as printed the step goes away from "
        "retraining. For independent rows the Hessian’s inverse is missing.",
        "baselines/test_influence.py::test_influence_plus_is_the_appendix_equation_with_its_sign_put_right",
        general=True,
        source=Source.MISPRINTS,
    ),
    Claim(
        "The norm of P^L’s rows in Theorem 1’s proof",
        "Theorem 1, proof",
        "|h_i| is at most B_x P_s, with P_s the largest 2-norm of a row of P^L.",
        rows_as_bounded,
        "|sum_j P_ij x_j| is at most B_x times the 1-norm of the row. With the 2-norm the smoothness, and with it the "
        "step of fine-tuning, is not what the proof needs.",
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
        "test_robustness.py::test_the_printed_dual_of_the_svm_gives_one_point_nothing_while_the_primal_solution_is_not_zero",
        general=True,
        source=Source.MISPRINTS,
    ),
)
