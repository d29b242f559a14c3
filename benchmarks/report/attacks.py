"""The report's part on attacks: results against chance, and assumptions."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from benchmarks.paper.inference.lira import NEVER_THERE_QUESTION, losses_of
from benchmarks.paper.inference.versions import AUDITED, PLANTED, SEEN
from benchmarks.report.lira import estimate
from benchmarks.report.results import REPAIRED, RETRAINED, Results, called, percent, spread
from benchmarks.report.section import Section, Table

_ANSWERS = (("exact", "exact"), ("3", "3 decimals"), ("2", "2"), ("1", "1"))
#: A figure and its format.
Column: TypeAlias = tuple[str, Callable[[Sequence[float]], str]]


def _by(attacks: Sequence[str], figure: str, write: Callable[[Sequence[float]], str]) -> dict[str, Column]:
    """Return columns of attacks, from exact or rounded answers; `figure` has placeholders for both."""
    return {f"{attack}, {name}": (figure.format(attack, kind), write) for attack in attacks for kind, name in _ANSWERS}


#: The columns of each table, by titles of table and column; chance comes first.
_IDENTIFICATION: dict[str, dict[str, Column]] = {
    "ranked first, %": {"chance": ("first_chance", percent), **_by(("filter", "neighbours"), "{}_{}_first", percent)},
    "median rank": {"chance": ("middle_rank", spread), **_by(("filter", "neighbours"), "{}_{}_rank", spread)},
}
_RECONSTRUCTION: dict[str, dict[str, Column]] = {
    "the candidate that is found from weights and by regression, %": {
        "chance": ("chance_first", percent),
        "weights": ("weights_first", percent),
        **_by(("regression",), "{}_{}_first", percent),
    },
    "the candidate that is found by likelihood, %": {
        "chance": ("chance_first", percent),
        **_by(("likelihood",), "{}_{}_first", percent),
    },
    "cosine to the node’s features": {
        "of the mean": ("mean_cosine", spread),
        "of another node": ("other_cosine", spread),
        "from weights": ("weights_cosine", spread),
        "by regression, exact": ("regression_exact_cosine", spread),
    },
    "cosine to its propagated row": {
        "of the mean": ("mean_propagated", spread),
        "of another node": ("other_propagated", spread),
        "from weights": ("weights_propagated", spread),
        "by regression, exact": ("regression_exact_propagated", spread),
    },
}
_EDGES: dict[str, dict[str, Column]] = {
    f"{kind}, against {name}, %": {"deleted edges": ("edges", spread), **_by(scores, f"{{}}_{{}}_{other}", percent)}
    for other, name in (("kept", "edges still there"), ("never", "pairs that never were edges"))
    for kind, scores in (("two versions", ("change",)), ("the version after", ("trend", "similarity")))
}
#: (attack, its assumptions, its requirements, whether it detects that the weights of one class stay as they were).
_NEEDS = (
    (
        "reconstruction from weights",
        "weights near the optimum; the deleted node’s neighbours change little otherwise",
        "both versions’ weights; public nodes’ rows of P^L X and labels; the specification",
        "yes, from the version after and the retrained model",
    ),
    (
        "reconstruction by regression",
        "the same; more public nodes than features, answers to many digits",
        "both versions’ answers on public nodes, their rows and labels; the specification",
        "yes, as above, from exact answers",
    ),
    (
        "reconstruction by likelihood",
        "the same; the deleted row is one of the candidates’",
        "as by regression, and the candidates’ rows without labels",
        "yes, as above",
    ),
    (
        "identification by a matched filter",
        "the same; the deleted node is one of the candidates",
        "as by likelihood, and the candidates’ labels",
        "yes, as above",
    ),
    (
        "identification by neighbours",
        "the deleted node has public neighbours",
        "both versions’ answers on public nodes; the edges of before",
        "not claimed: both answer on the same graph, and near nodes change more only because their rows are similar",
    ),
    (
        "deleted edges by change",
        "an edge’s ends are among the nodes whose answers change most",
        "both versions’ answers about the ends of the pairs in question",
        "no: an edge hardly moves the weights; it detects answers that still use the edge",
    ),
    (
        "deleted edges by trend, or similarity",
        "confidence drops where an edge went, or the ends’ answers are alike",
        "one version’s answers about the ends and their neighbours; for the trend, the edges that are left",
        "no, as above",
    ),
    (
        "U-LiRA",
        "shadow models trained on the same distribution are like the attacked one",
        "16 to 64 models trained with and without a node, and unlearned; its true label; answers about it on a "
        "graph that still has it",
        "yes",
    ),
)


def sections(results: Results) -> list[Section]:
    """Return all sections, measured or not."""
    return [
        Section(
            "Who was deleted",
            "The attacker ranks candidates with known rows and labels. He uses answers about other nodes before and "
            "after one deletion, exact or rounded. The tables have the percentage in which the deleted node ranks "
            "first, and its median rank. “Before and after” is visible to anybody who asks twice, and retraining "
            "reveals it as well. “After and retrained” compares with the retrained model and shows the traces that a "
            "method leaves: there chance is the goal. Answers with all digits also show the 1e-8 at which the repair "
            "stops. The planted leak is the retrained model with the old weights of the deleted node’s class.",
            _tables(results, "identification", _IDENTIFICATION),
        ),
        Section(
            "A deleted node’s features",
            "Reconstructed from two versions (after Bertran et al., 2024). The cosine is to the node’s features and to "
            "its propagated row, beside that of the public rows’ mean and of another node. The percentages are how "
            "often the node’s row is the nearest, or most likely, of the candidates. In a batch of ten the nearest "
            "node counts.",
            _tables(results, "reconstruction", _RECONSTRUCTION),
        ),
        Section(
            "Deleted edges",
            "One in a hundred edges deleted in one batch (after TrendAttack, 2025). The figures are areas under the "
            "curve, in percent, of distinguishing them from as many remaining edges, and from as many pairs that never "
            "were edges. Retraining is the baseline: answers about the ends of an edge differ even if it is forgotten. "
            "Chance, 50, is the goal only for “after and retrained” against remaining edges, and figures far below it "
            "count as findings too. Change compares two versions; trend and similarity use the version after. This is "
            "one draw: on Cora, with 53 deleted edges, the standard error is about six points.",
            _tables(results, "edges", _EDGES),
        ),
        Section(
            "What each attack assumes and needs",
            "The results claim nothing beyond these assumptions. An attacker who compares two versions knows how many "
            "deletions lie between them. The candidates are half of the training nodes; all other nodes are public.",
            [("", Table(("attack", "assumes", "needs", "sees a planted leak"), _NEEDS, prose=True))],
        ),
    ]


def exact_methods(results: Results) -> Table:
    """Return a row for each graph and exact method, and for the planted leak."""
    rows = []
    for dataset in results.datasets("identification"):
        for method in (RETRAINED, REPAIRED, "closed-form sgc", "graph editor", PLANTED):
            identified, found = (
                [percent(results.values(experiment, dataset, method, case, figure)) for case in cases]
                for experiment, figure, cases in (
                    ("identification", "filter_exact_first", (SEEN, AUDITED)),
                    ("reconstruction", "weights_first", (f"single, {SEEN}", f"single, {AUDITED}")),
                )
            )
            ranks = [_rank(results, dataset, method, decimals) for decimals in ("exact", "3")]
            question = f"{losses_of(method)[0]}, {NEVER_THERE_QUESTION}"
            cells = [*identified, *ranks, *found, estimate(results, ("lira", dataset, method, question), "auc")]
            if set(cells) != {"–"}:
                rows.append([called(dataset), method, *cells])
    head = (
        *(f"identified, {case}, %" for case in (SEEN, AUDITED)),
        *(f"median rank, {AUDITED}, {decimals} (chance)" for decimals in ("exact", "3 decimals")),
        *(f"row found, {case}, %" for case in (SEEN, AUDITED)),
    )
    return Table(("dataset", "method", *head, "U-LiRA, area in %"), rows)


def _rank(results: Results, dataset: str, method: str, decimals: str) -> str:
    """Format the median rank of the deleted node, with chance, from the model after and the retrained one."""
    key = ("identification", dataset, method, AUDITED)
    rank, middle = (results.values(*key, each) for each in (f"filter_{decimals}_rank", "middle_rank"))
    return f"{spread(rank)} ({spread(middle)})" if rank else "–"


def _tables(results: Results, experiment: str, parts: dict[str, dict[str, Column]]) -> list[tuple[str, Table]]:
    """Return a table for each dataset and part, with a row for each method and pair of versions."""
    made = []
    for dataset in results.datasets(experiment):
        for title, columns in parts.items():
            rows = []
            for method in results.methods(experiment, dataset):
                for case in results.cases(experiment, dataset):
                    values = [
                        (results.values(experiment, dataset, method, case, figure), write)
                        for figure, write in columns.values()
                    ]
                    # Without figures beyond chance there is nothing to show.
                    if any(found for found, _ in values[1:]):
                        rows.append([f"{method}: {case}", *(write(found) for found, write in values)])
            made.append((f"{called(dataset)}: {title}", Table(("", *columns), rows)))
    return made
