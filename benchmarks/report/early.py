"""The report's part on training by descent that stops early, as in the paper."""

from benchmarks.paper.forgetting.early import PATIENCE
from benchmarks.report.claims.judging import EARLY
from benchmarks.report.results import Results, called, percent, spread
from benchmarks.report.section import Section, Table

_ANSWERS = ("deleted", "remaining", "test")
_TRAINED = ("iterations", "rate", "objective", "objective_at_zero")


def sections(results: Results) -> list[Section]:
    """Return the section, measured or not."""
    return [
        Section(
            "Trained as in the paper",
            "Descent with momentum 0.9 at the learning rate (0.1 or 1) that classifies validation nodes better, of "
            f"those at which it is stable. It stops once their accuracy has not risen for {PATIENCE} iterations, as in "
            "the authors’ code for Cora and Pubmed. Retraining takes as many iterations at the same rate, as there. "
            "Projector has lambda 1e-6, as in the paper. Influence+ and Fisher+ are without noise, at four lambdas; "
            "each is compared with retraining at its own. The paper prints only that theirs is larger; its code has "
            "1e-2 on Cora and Pubmed, and 1e-3 on Citeseer. The first table shows how far each model was trained. "
            "Distances of weights are relative to the weights before the deletion; those of answers are as in "
            "Figure 3. In the injection test the deleted nodes have a feature and a class of their own.",
            [
                (f"{called(dataset)}{part}", table)
                for dataset in results.datasets(EARLY)
                for part, table in (
                    (": the models", _models(results, dataset)),
                    (": after the deletion", _table(results, dataset)),
                )
            ],
        )
    ]


def _models(results: Results, dataset: str) -> Table:
    """Return a row for each trained model: one for each lambda, and for each injected channel."""
    rows: dict[str, list[str]] = {}
    for method in results.methods(EARLY, dataset):
        regularization = method.rpartition(", ")[2]
        for case in results.cases(EARLY, dataset):
            found = [results.values(EARLY, dataset, method, case, each) for each in (*_TRAINED, "accuracy_before")]
            name = f"{regularization}, {case if case.startswith('injection') else 'no injection'}"
            if found[0] and name not in rows:
                *trained, accuracy = found
                rows[name] = [name, *map(spread, trained), percent(accuracy), str(len(accuracy))]
    head = ("", "iterations", "learning rate", "objective", "objective at zero", "test accuracy, %", "seeds")
    return Table(head, list(rows.values()))


def _table(results: Results, dataset: str) -> Table:
    rows = []
    for method in results.methods(EARLY, dataset):
        for case in results.cases(EARLY, dataset):
            key = (EARLY, dataset, method, case)
            away = results.values(*key, "weights")
            if away:
                answers = [spread(results.values(*key, each)) for each in _ANSWERS]
                channels = [spread(results.values(*key, f"channel_norm_{when}")) for when in ("before", "after")]
                accuracies = [percent(results.values(*key, f"accuracy_{when}")) for when in ("before", "after")]
                rows.append([method, case, spread(away), *answers, *channels, *accuracies, str(len(away))])
    head = ("method", "test, deleted", "weights", "deleted nodes", "remaining", "test", "channel before", "after")
    return Table((*head, "accuracy before, %", "after, %", "seeds"), rows)
