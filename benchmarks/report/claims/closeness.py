"""The paper's claims on distances to retraining (Figure 3), neighbours and the options, and how results judge them."""

from itertools import pairwise

from benchmarks.report.claims.injection import OPTIMUM, channel
from benchmarks.report.claims.judging import APPROXIMATE, all_of, compared, grouped, over_seeds, place, smaller
from benchmarks.report.claims.verdicts import Case, Claim
from benchmarks.report.results import LETHE, Results, by, called, number, shared

_PRINTED = "projector, option 1 as printed"
_AUTHORS = "influence+, authors' code"
#: The paper's baselines.
_BASELINES = (*APPROXIMATE, _AUTHORS, "graph eraser, linear, metis, mean")
_NOISELESS = ("influence, without noise", _AUTHORS, "fisher+, without noise")
_FIGURES = {"activations": ("deleted", "remaining", "test"), "weights": ("weights",)}
#: Growth with each layer that counts as exponential; on a path the third layer multiplies by 1.4.
_FACTOR = 1.5
_READINGS = {"all live nodes remain": LETHE, "training nodes remain": _PRINTED}


def growing(results: Results) -> list[Case]:
    """Judge whether the projection moves away from retraining as more is deleted."""
    cases = []
    for dataset in results.datasets("closeness"):
        shares = results.cases("closeness", dataset)
        for less, more in pairwise(shares):
            seeds = shared(*(results.by_seed("closeness", dataset, LETHE, each, "weights") for each in (less, more)))
            if seeds:
                near, far = (sum(each) / len(seeds) for each in zip(*seeds, strict=True))
                words = f"{place(dataset, less)}, {by(len(seeds))}: {number(near)}, and {number(far)} at "
                words += f"{float(more):.0%}."
                cases.append(over_seeds(smaller, seeds, words, called(dataset)))
    return cases


def multiplying(results: Results) -> list[Case]:
    """Judge whether each layer multiplies the affected nodes by `_FACTOR` or more, until half of the graph."""
    cases = []
    for dataset in results.datasets("dependency"):
        key = ("dependency", dataset, "all nodes")
        layers = results.cases("dependency", dataset)
        counts = [results.mean(*key, each, "affected") or 0.0 for each in layers]
        nodes = results.mean(*key, layers[0], "nodes") or 0.0
        steps = [after / before for before, after in pairwise(counts) if after <= nodes / 2]
        if steps:
            shown = ", ".join(f"{each:,.0f}" for each in counts)
            words = f"{called(dataset)}, 1 to {len(counts)} layers: {shown} of {nodes:,.0f} nodes on average."
            cases.append(Case(min(steps) - _FACTOR, words, called(dataset)))
    return cases


CLAIMS = (
    Claim(
        "Neighbours have to be updated as well",
        "Figure 1 and Appendix on dependency",
        "Deleting a node changes its neighbours' rows, so that methods for independent rows cannot be used as such.",
        channel(("influence, without noise",), gone=False),
        "By the injected channel, of which Influence keeps what neighbours’ rows still have. Influence+, which without "
        "noise is the Newton step of Fisher+, exchanges these rows. Closer to retraining it need not end: one Newton "
        "step can overshoot "
        "(test_smallest_examples.py::test_a_newton_step_can_end_farther_off_for_updating_neighbours).",
    ),
    Claim(
        "Affected nodes grow exponentially with the layers",
        "Introduction, Figure 1 and Appendix on dependency",
        "All affected nodes have to be updated in parallel: massive computation, since their number grows "
        "exponentially with the number of layers.",
        multiplying,
        f"Counted as growing so if each layer multiplies them by {_FACTOR} or more, until half of the graph is "
        "reached. The factor falls from layer to layer; on Citeseer, which has many small components, the fifth layer "
        "still multiplies by 1.8. It is not so on every graph: on a path each layer adds two.",
        "test_smallest_examples.py::test_on_a_path_two_more_rows_change_with_each_layer",
    ),
    Claim(
        "Woodbury’s identity makes the projection cheaper",
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
            (("projector, option 2 as printed", _PRINTED),),
            lambda first, second: 1e-3 - abs(first - second),
        ),
        "As printed, Option 2 does not project (see “Misprints”); with Woodbury’s identity in its place it has nothing "
        "to invert where a direction is lost. The two options also differ in what remains: the training nodes in "
        "Option 1, all nodes in Option 2, whose M is of all features.",
        "baselines/test_printed.py::test_option_2_is_the_printed_formula_and_no_projection",
        general=True,
    ),
    Claim(
        "Projector is closer to retraining than the baselines",
        "Figure 3",
        "Both the final activation (columns 1 to 3) and the output parameters (column 4) of Projector are closer to "
        "retraining than those of the baselines.",
        all_of(
            *(
                grouped(
                    f"{part}, {reading}",
                    compared("closeness", figure, tuple((method, other) for other in _BASELINES), smaller),
                )
                for reading, method in _READINGS.items()
                for part, figures in _FIGURES.items()
                for figure in figures
            )
        ),
        "The baselines run as published, with noise of a size that is theirs to choose; it is most of the distance of "
        "Influence+ and Fisher+. On the deleted nodes the unchanged weights still know the label. After early stopping "
        "at the paper’s lambda neither the projection nor retraining moves far, which is another setting.",
        "test_smallest_examples.py::test_a_newton_step_is_closer_to_retraining_where_the_projection_changes_nothing",
        setting=OPTIMUM,
    ),
    Claim(
        "Projector is provably closer to retraining than Influence and Fisher",
        "Proposition 2",
        "If delta is below the condition's limit, Projector's output is provably closer to re-training than that of "
        "Influence and Fisher.",
        compared("closeness", "weights", tuple((LETHE, other) for other in _NOISELESS), smaller),
        "The condition holds for every graph (delta is at most B_x, its limit is more), and the conclusion does not: "
        "the proof compares bounds on how far each method moves, not distances to retraining. Measured without noise, "
        "as in the proof, at the optimum: a Newton step goes most of the way to the retrained weights; the projection, "
        "where no direction is lost, none of it. At the optimum the authors’ code of Influence+ is farther away, since "
        "it takes all neighbours out of training as well.",
        "test_smallest_examples.py::test_a_newton_step_is_closer_to_retraining_where_the_projection_changes_nothing",
        general=True,
    ),
    Claim(
        "Fewer deletions end closer to retraining",
        "Figure 3 and Theorem 1",
        "A lower unlearning percentage leads to a smaller difference of the weights.",
        growing,
        "Each seed deletes other nodes at each share.",
        "test_smallest_examples.py::test_more_deletions_can_end_closer_to_retraining",
        setting=OPTIMUM,
    ),
)
