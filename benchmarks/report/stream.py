"""Chien et al.'s consecutive deletions, beside their published results."""

from benchmarks.report.results import Results, called, number, paired, percent, spread
from benchmarks.report.section import Table

#: Figures of a stream and their formats.
_STREAM = (
    ("accuracy before, %", "accuracy_before", percent),
    ("after, %", "accuracy_after", percent),
    ("retrained with noise, %", "accuracy_anew", percent),
    ("retrained without, %", "accuracy_retrained", percent),
    ("retrainings", "retrainings", spread),
    ("spent", "budget_spent", spread),
    ("budget", "budget", spread),
    ("epsilon of all columns", "epsilon", spread),
    ("time of all, s", "seconds", spread),
    ("of one retraining, s", "seconds_of_one_retraining", spread),
    ("of one by the authors’ solver, s", "seconds_of_one_retraining_as_theirs", spread),
    ("retrained by that solver, %", "accuracy_retrained_as_theirs", percent),
)
_LOST, _FASTER = "lost to retraining without noise, points", "times as fast as retraining after each"
_FASTER_THAN_THEIRS = "times as fast as retraining by the authors’ solver"
#: Published for 200 of Cora's nodes.
_PUBLISHED = {_LOST: "0.1", _FASTER_THAN_THEIRS: "4"}


def stream_table(results: Results) -> Table:
    """Return a column for each stream of a graph's nodes, edges or features."""
    streams = [(dataset, case) for dataset in results.datasets("stream") for case in results.cases("stream", dataset)]
    columns = [_streamed(results, *each) for each in streams]
    names = [name for name, _, _ in _STREAM] + [_LOST, _FASTER, _FASTER_THAN_THEIRS]
    rows = [[name, *(column[name] for column in columns), _PUBLISHED.get(name, "–")] for name in names]
    heads = (_removed(results, *each) for each in streams)
    return Table(("", *heads, "published: Cora, 200 nodes"), rows if streams else ())


def _removed(results: Results, dataset: str, case: str) -> str:
    removals = results.mean("stream", dataset, "certified removal", case, "removals")
    return f"{called(dataset)}, {number(removals)} {case}"


def _streamed(results: Results, dataset: str, case: str) -> dict[str, str]:
    """Return every formatted figure of one stream, by name."""
    key = ("stream", dataset, "certified removal", case)
    after, anew = (results.mean(*key, each) for each in ("accuracy_after", "accuracy_retrained"))
    lost = None if after is None or anew is None else 100 * (anew - after)

    def faster(solver: str) -> str:
        figures = ("removals", "seconds", f"seconds_of_one_retraining{solver}")
        means, seeds = paired(*(results.by_seed(*key, each) for each in figures))
        return number(means[0] * means[2] / means[1]) if seeds else "–"

    return {
        **{name: written(results.values(*key, figure)) for name, figure, written in _STREAM},
        _LOST: "–" if lost is None else f"{lost:.2f}",
        _FASTER: faster(""),
        _FASTER_THAN_THEIRS: faster("_as_theirs"),
    }
