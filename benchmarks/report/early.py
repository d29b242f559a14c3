"""The report's part on training by descent that stops early, as in the paper."""

from benchmarks.report.results import Results, called, percent, spread
from benchmarks.report.section import Section, Table

_EXPERIMENT = "early-stopping"


def sections(results: Results) -> list[Section]:
    """Return the section, measured or not."""
    return [
        Section(
            "Trained as in the paper",
            "Descent with momentum 0.9 at lambda 1e-6 and the learning rate (0.1 or 1) that classifies validation "
            "nodes better, stopped once their accuracy has not risen for 10 iterations. All methods start from these "
            "weights, and retraining descends and stops in the same way. All methods are without noise; for "
            "Influence+ and Fisher+ the paper has a larger lambda. Distances are relative to the weights before the "
            "deletion. In the injection test the deleted nodes have a feature and a class of their own. A Newton "
            "step aims at the optimum, which is far from where retraining stops, and may miss it. Retraining may stop "
            "many iterations earlier or later than training did; then the projection is far from it too.",
            [(called(each), _table(results, each)) for each in results.datasets(_EXPERIMENT)],
        )
    ]


def _table(results: Results, dataset: str) -> Table:
    rows = []
    for method in results.methods(_EXPERIMENT, dataset):
        for case in results.cases(_EXPERIMENT, dataset):
            key = (_EXPERIMENT, dataset, method, case)
            test, share = case.split(", ")
            away = results.values(*key, "weights")
            channels = [results.values(*key, f"channel_norm_{when}") for when in ("before", "after")]
            rows.append(
                [
                    method,
                    f"{test}, {float(share):.1%}",
                    spread(away),
                    *(spread(each) if test == "injection" else "–" for each in channels),
                    *(percent(results.values(*key, f"accuracy_{when}")) for when in ("before", "after")),
                    str(len(away)),
                ]
            )
    head = ("method", "test, deleted", "distance to retraining", "channel before", "after", "accuracy before, %")
    return Table((*head, "after, %", "seeds"), rows)
