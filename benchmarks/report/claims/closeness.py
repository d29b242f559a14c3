"""The paper's claims on distances to retraining (Figure 3), neighbours and the options, and how results judge them."""

from itertools import pairwise

from benchmarks.report.claims.injection import LINEAR_ERASERS, channel
from benchmarks.report.claims.judging import APPROXIMATE, Case, Claim, all_of, compared, place, smaller
from benchmarks.report.results import LETHE, Results, by, number, paired

_AUTHORS = "influence+, authors' code"
_BASELINES = (*APPROXIMATE, "influence", _AUTHORS, *LINEAR_ERASERS)
#: The last one is Influence+ without noise, too.
_NOISELESS = ("influence, without noise", _AUTHORS, "fisher+, without noise")
_ANSWERS = ("deleted", "remaining", "test")


def growing(results: Results) -> list[Case]:
    """Judge whether the projection moves away from retraining as more is deleted."""
    cases = []
    for dataset in results.datasets("closeness"):
        shares = results.cases("closeness", dataset)
        for less, more in pairwise(shares):
            found = [results.by_seed("closeness", dataset, LETHE, each, "weights") for each in (less, more)]
            means, seeds = paired(*found)
            if seeds:
                near, far = means
                words = f"{place(dataset, less)}, {by(seeds)}: {number(near)}, and {number(far)} at {float(more):.0%}."
                cases.append(Case(smaller(near, far), words))
    return cases


CLAIMS = (
    Claim(
        "Neighbours have to be updated as well",
        "Figure 1 and Appendix on dependency",
        "Deleting a node changes its neighbours' rows, so that methods for independent rows cannot be used as such.",
        channel(("influence, without noise",), gone=False),
        "By the injected channel, of which Influence keeps what neighbours’ rows still have. Influence+, which without "
        "noise is the Newton step of Fisher+, exchanges these rows and keeps nothing (Table 1). Closer to retraining "
        "it need not end: one Newton step can overshoot "
        "(test_smallest_examples.py::test_a_newton_step_can_end_farther_off_for_updating_neighbours).",
    ),
    Claim(
        "The appendix’ influence equation as printed",
        "Appendix on dependency",
        "w_affect = w* + H^-1 v, with v the gradient of what is given back less that of what is taken away; before it "
        "w* + [H - H_n] g_n for independent rows.",
        # Algebra, so nothing is measured.
        lambda results: [],
        "0 = v + H (w - w*) stands one line above, so that w is w* - H^-1 v: as printed the step goes away from "
        "retraining. For independent rows the Hessian’s inverse is missing.",
        "baselines/test_influence.py::test_influence_plus_is_the_appendix_equation_with_its_sign_put_right",
        general=True,
    ),
    Claim(
        "Affected nodes grow exponentially with the layers",
        "Introduction, Figure 1 and Appendix on dependency",
        "All affected nodes have to be updated in parallel: massive computation, since these grow exponentially with "
        "the number of layers.",
        # A count on a path, so nothing is measured.
        lambda results: [],
        "On a path they grow by two with each layer, on a graph of many nodes at most until they are all. The "
        "times of Influence+ (Table 1) include updating them for two layers.",
        "test_smallest_examples.py::test_on_a_path_two_more_rows_change_with_each_layer",
        general=True,
    ),
    Claim(
        "Woodbury’s identity gives what the projection needs",
        "Section 3.2",
        "The pseudo-inverse of the remaining rows' Gram matrix follows by the Woodbury identity in O(max{m^3, m d^2}), "
        "which is less than computing it again if m < max{r, d}.",
        # Algebra, so nothing is measured.
        lambda results: [],
        "The identity inverts I - X_D M^+ X_D^T, which is singular exactly where a direction is lost, the one case in "
        "which the projection does anything; with a pseudo-inverse in its place the lost direction stays. (Lethe's "
        "update takes such directions out first.) And it pays for m < d, not for m < r: with d = 1, r = 10 and m = 9, "
        "m^3 is 729, and r d^2 + d^3 is 11.",
        "baselines/test_printed.py::test_woodbury_has_nothing_to_invert_where_a_direction_is_lost",
        general=True,
    ),
    Claim(
        "Options 1 and 2 of Algorithm 1 are the same",
        "Section 3.2, Algorithm 1",
        "Two different types of input are available that lead to identical results.",
        compared(
            "closeness",
            "weights",
            (("projector, option 2 as printed", "projector, option 1 as printed"),),
            lambda first, second: 1e-3 - abs(first - second),
        ),
        "Option 2's matrix is not the Woodbury identity, whose middle is [I - X_D M+ X_D^T]^-1.",
        "baselines/test_printed.py::test_option_2_is_the_printed_formula_and_no_projection",
        general=True,
    ),
    Claim(
        "The projection’s weights are closest to retraining",
        "Figure 3, column 4",
        "The output parameters of Projector are closer to those of retraining than the baselines'.",
        compared("closeness", "weights", tuple((LETHE, other) for other in _BASELINES), smaller),
        "The baselines run as published, with noise of a size that is theirs to choose: Influence's and Influence+'s "
        "of deviation 0.1, over lambda, which is 1e-4 here, and the number of training nodes; Fisher+'s of 0.01, over "
        "lambda's fourth root. It is most of the distance of Influence+ and Fisher+, and of Influence's with few "
        "training nodes; the next claim is without it.",
        "test_smallest_examples.py::test_a_newton_step_is_closer_to_retraining_where_the_projection_changes_nothing",
    ),
    Claim(
        "The projection is closer to retraining than a Newton step",
        "Figure 3 and Proposition 2",
        "Projector's output is provably closer to retraining than Influence and Fisher.",
        compared("closeness", "weights", tuple((LETHE, other) for other in _NOISELESS), smaller),
        "A Newton step on the remaining graph (Fisher+ or Influence+ without noise) goes most of the way to the "
        "retrained weights; the projection, where no direction is lost, none of it. For the authors’ code of "
        "Influence+ the claim holds: it takes all neighbours out of training as well, and so comes near to another "
        "model.",
        "test_smallest_examples.py::test_a_newton_step_is_closer_to_retraining_where_the_projection_changes_nothing",
    ),
    Claim(
        "The projection’s answers are closest to retraining",
        "Figure 3, columns 1 to 3",
        "The final activations of Projector are closer to retraining, on deleted, remaining and test nodes.",
        all_of(
            *(
                compared("closeness", figure, tuple((LETHE, other) for other in _BASELINES), smaller)
                for figure in _ANSWERS
            )
        ),
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
)
