"""What Chien et al. publish of certified removal, and how results judge it."""

from benchmarks.report.judging import Case, Claim
from benchmarks.report.results import Results, number


def stream_accuracy(results: Results) -> list[Case]:
    """0.1 % less test accuracy than retraining after 200 deletions; twice that still counts."""
    cases = []
    for case in results.cases("stream", "cora"):
        key = ("stream", "cora", "certified removal", case)
        after, anew = results.mean(*key, "accuracy_after"), results.mean(*key, "accuracy_anew")
        if after is not None and anew is not None:
            words = f"{number(100 * after)} % after {case} deletions, {number(100 * anew)} % retrained with its noise."
            cases.append(Case(0.002 - (anew - after), words))
    return cases


def stream_speed(results: Results) -> list[Case]:
    """Four times as fast as retraining after each deletion."""
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


CLAIMS = (
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
        "Their retraining is by L-BFGS on a GPU; ours by Newton's method, which takes tens of steps. On Cora the "
        "budget lasts: what takes the time is each removal's own step and bound, for every class. The smallest example "
        "has another reason: of few nodes the budget is spent at once, and each removal is a step and a training.",
        "test_smallest_examples.py::test_certified_removal_trains_anew_each_time_where_nodes_are_few",
    ),
)
