"""The headline: exact and approximate methods beside each other."""

from benchmarks.paper.experiments import EXPERIMENTS
from benchmarks.paper.inference.lira import NEVER_THERE_QUESTION, losses_of
from benchmarks.report.results import REPAIRED, RETRAINED, Results, called, number, percent, spread
from benchmarks.report.section import Table

_PRINTED = "projector, option 1 as printed"
#: Exact methods, and what their weights are.
EXACT = {
    REPAIRED: "yes",
    RETRAINED: "yes",
    "graph editor": "yes, of ridge regression",
    "closed-form sgc": "yes, of ridge regression",
}
#: Approximate methods, of which the one that ends closest to the optimum of retraining is shown. DeltaGrad follows a
#: descent that ends far from it, so its distance is of another kind.
_APPROXIMATE = (
    "influence+",
    "influence+, authors' code",
    "fisher+, without noise",
    "graph eraser, linear, metis, mean",
    "projective residual",
)
_ONE, _MANY = "1", "64"
_HEAD = (
    "method",
    "graph",
    "exact",
    "distance to retraining, 64 deleted",
    "test accuracy after, %",
    "time for 1 node, s",
    "for 64 nodes, s",
    "memory for 64 nodes, MiB",
    "U-LiRA, area in % (chance 50)",
    "seeds",
)


def headline(results: Results) -> Table:
    """Return a row for each graph and method; without results, no rows."""
    rows = []
    for dataset in results.datasets("batches"):
        best = _closest(results, dataset)
        for method in (*EXACT, _PRINTED, *([best] if best else ())):
            seconds = results.values("batches", dataset, method, _MANY, "seconds")
            if seconds:
                rows.append(_row(results, dataset, method, len(seconds)))
    return Table(_HEAD, rows)


def slower(results: Results) -> list[str]:
    """Return a sentence for each graph and size where an exact method takes less time than Lethe."""
    sentences = []
    for dataset in results.datasets("batches"):
        for size in (_ONE, _MANY):
            times = {each: results.mean("batches", dataset, each, size, "seconds") for each in EXACT}
            own = times.pop(REPAIRED)
            faster = [
                f"{method} takes {number(took)} s"
                for method, took in times.items()
                if own and took is not None and took < own
            ]
            if faster:
                nodes = "one node" if size == _ONE else f"{size} nodes"
                sentences.append(f"{called(dataset)}, {nodes}: Lethe takes {number(own)} s; {' and '.join(faster)}.")
    return sentences


def missing(results: Results) -> list[str]:
    """Return the graphs that the headline lacks, and the rows that it lacks of the others."""
    there = results.datasets("batches")
    absent = []
    for dataset in EXPERIMENTS["batches"].datasets:
        rows = [each for each in (*EXACT, _PRINTED) if each not in results.methods("batches", dataset)]
        if dataset not in there:
            absent.append(called(dataset))
        elif rows:
            absent.append(f"{called(dataset)} ({', '.join(rows)})")
    return absent


def _closest(results: Results, dataset: str) -> str | None:
    """Return the approximate method that ends closest to retraining when 64 nodes are deleted."""
    distances = {each: results.mean("batches", dataset, each, _MANY, "weights") for each in _APPROXIMATE}
    found = {method: distance for method, distance in distances.items() if distance is not None}
    return min(found, key=lambda method: found[method]) if found else None


def _row(results: Results, dataset: str, method: str, seeds: int) -> list[str]:
    key = ("batches", dataset, method)
    area = results.mean("lira", dataset, method, f"{losses_of(method)[0]}, {NEVER_THERE_QUESTION}", "auc")
    best = method not in (*EXACT, _PRINTED)
    return [
        f"{method} (closest approximate method)" if best else method,
        called(dataset),
        EXACT.get(method, "no"),
        spread(results.values(*key, _MANY, "weights")),
        percent(results.values(*key, _MANY, "accuracy_after")),
        *(spread(results.values(*key, size, "seconds")) for size in (_ONE, _MANY)),
        spread(results.values(*key, _MANY, "peak_mib")),
        "not measured" if area is None else f"{100 * area:.1f}",
        str(seeds),
    ]
