"""Chien et al.'s published results of certified removal, and how ours judge them."""

from benchmarks.report.claims.verdicts import Case, Claim, Source
from benchmarks.report.results import Results, by, number, paired

#: The published figures are for nodes.
_KEY = ("stream", "cora", "certified removal", "nodes")
#: Solvers of retraining, and the figures of their times.
_SOLVERS = {
    "the authors’ L-BFGS": "seconds_of_one_retraining_as_theirs",
    "Newton’s method": "seconds_of_one_retraining",
}


def stream_accuracy(results: Results) -> list[Case]:
    """At most 0.1 % less test accuracy than retraining after 200 deletions; twice that still counts."""
    names = ("removals", "accuracy_after", "accuracy_retrained", "accuracy_anew")
    removals, after, anew, noisy = (results.mean(*_KEY, each) for each in names)
    if removals is None or after is None or anew is None:
        return []
    seeds = by(len(results.values(*_KEY, "accuracy_after")))
    words = f"{seeds}: {100 * after:.2f} % after {removals:.0f} removals, {100 * anew:.2f} % retrained"
    if noisy is not None:
        words += f", {100 * noisy:.2f} % retrained with its noise"
    words += "."
    return [Case(0.002 - (anew - after), words, "Cora")]


def stream_speed(results: Results) -> list[Case]:
    """Four times as fast as retraining after each removal, by either solver."""
    cases = []
    for solver, figure in _SOLVERS.items():
        figures = ("removals", "seconds", "retrainings", figure)
        means, seeds = paired(*(results.by_seed(*_KEY, each) for each in figures))
        if seeds:
            removals, spent, again, once = means
            ratio = once * removals / spent
            words = (
                f"{by(seeds)}: {number(ratio)} times as fast as retraining by {solver} after each of {removals:.0f} "
                f"removals, with {number(again)} retrainings."
            )
            cases.append(Case(ratio - 4.0, words, solver))
    return cases


CLAIMS = (
    Claim(
        "Certified removal keeps accuracy",
        "Chien et al. 2023, abstract",
        "200 of Cora's 1,208 training nodes removed at (1, 1e-4): 0.1 % less test accuracy.",
        stream_accuracy,
        "Compared with retraining without noise, as in their paper. A loss of up to 0.2 % still counts. The noise "
        "causes the loss: against retraining with the same noise nothing is lost.",
        "test_smallest_examples.py::test_certified_removal_costs_what_its_noise_costs",
        setting="Our own implementation, beside retraining to the optimum.",
        source=Source.CERTIFIED,
    ),
    Claim(
        "Certified removal is four times as fast",
        "Chien et al. 2023, abstract",
        "… and four times as fast as retraining after each.",
        stream_speed,
        "They retrain by L-BFGS on a GPU, in two thousand steps; Newton’s method takes a few. On Cora the budget "
        "lasts, and each removal’s own step and bound take the time, for every class. The smallest example shows "
        "another reason: with few nodes the budget is spent at once, so each removal is a step and a training.",
        "test_smallest_examples.py::test_certified_removal_trains_anew_each_time_where_nodes_are_few",
        setting="A processor; theirs is a GPU.",
        source=Source.CERTIFIED,
    ),
)
