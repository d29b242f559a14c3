"""The report's part on U-LiRA: what one attacker for each node infers about it after unlearning."""

from benchmarks.attacks.lira import CHANCE
from benchmarks.paper.inference.lira import NEVER_THERE_QUESTION, RETRAINED_QUESTION
from benchmarks.report.results import Results, called
from benchmarks.report.section import Section, Table

_COLUMNS = {
    "auc": "area under the ROC curve",
    "balanced": "balanced accuracy",
    "tpr_0.001": "true positives at 0.1 % false",
    "tpr_0.01": "true positives at 1 % false",
}
_COUNTS = ("models", "targets")


def sections(results: Results) -> list[Section]:
    """Return the section, measured or not."""
    return [
        Section(
            "Unlearned or never trained on: U-LiRA",
            "The attack of Hayes et al. (2024). For each target the attacker fits a normal distribution to the "
            "confidences of shadow models that unlearned it, and one to those that never had it, and scores other "
            "models by the ratio of the two. Each half of the models is attacked with the knowledge of the other "
            "half. Percent, with 95 % intervals of a bootstrap over targets and models; the heads give chance. The "
            "attacker knows the graph before the deletion, with the target’s features, edges and class, the settings "
            "of training and the method. He can train as many models, and gets exact answers about a deleted node on "
            "that graph; a running Lethe gives no such answer. “Or retrained” compares with models retrained without "
            "any target. “Or never there” compares with models that unlearned other nodes by the same method, so "
            "only traces of the target itself help. Retraining is the control. A sharded model differs from a "
            "retrained one even if it forgot. If an interval contains chance, this attacker with this many models "
            "found nothing; other attackers might.",
            [(called(each), _table(results, each)) for each in results.datasets("lira")],
        )
    ]


def _table(results: Results, dataset: str) -> Table:
    rows = []
    for method in results.methods("lira", dataset):
        for question in (RETRAINED_QUESTION, NEVER_THERE_QUESTION):
            for case in results.cases("lira", dataset):
                key = ("lira", dataset, method, case)
                counts = [f"{each:.0f}" for figure in _COUNTS for each in results.values(*key, figure)[:1]]
                if case.endswith(question) and counts:
                    rows.append([f"{method}; {case}", *(estimate(results, key, each) for each in _COLUMNS), *counts])
    head = [f"{words}, chance {100 * CHANCE[figure]:g}" for figure, words in _COLUMNS.items()]
    return Table(("method; loss, question", *head, *_COUNTS), rows)


def estimate(results: Results, key: tuple[str, str, str, str], figure: str) -> str:
    """Format a percentage of the first seed with its interval, if measured."""
    found = [results.values(*key, f"{figure}{end}") for end in ("", "_low", "_high")]
    if not all(found):
        return "–"
    value, low, high = (100 * each[0] for each in found)
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"
