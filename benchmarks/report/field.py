"""The report's part on methods of other papers, beside retraining, the projection and Lethe's repair."""

from benchmarks.baselines.catalogue import FIELD
from benchmarks.paper.forgetting.field import DELETED, MISLABELLED
from benchmarks.paper.inference.lira import NEVER_THERE_QUESTION, losses_of
from benchmarks.report.headline import EXACT
from benchmarks.report.results import RETRAINED, Results, called, number, percent, spread
from benchmarks.report.section import Section, Table

_EXPERIMENT = "field"
_EXACT = EXACT | {"gcn": "yes"}
#: One exact method for each kind of model; its record also has the model before the deletion.
_KINDS = {
    RETRAINED: "linear model, nothing forgotten",
    "graph editor": "graph editor’s ridge regression, nothing forgotten",
    "closed-form sgc": "closed-form sgc’s ridge regression, nothing forgotten",
    "gcn": "gcn, nothing forgotten",
}
_HEAD = (
    "method",
    "graph",
    "exact",
    "agreement with retraining, %",
    "distance of logits",
    "distance of parameters",
    "test accuracy, %",
    "time, s",
    "memory, MiB",
    "wrong labels kept, %",
    "U-LiRA, area in % (chance 50)",
    "seeds",
)


def sections(results: Results) -> list[Section]:
    """Return the section, measured or not."""
    return [
        Section(
            "GIF, IDEA, MEGU and GNNDelete",
            "Methods of other papers for the linear model and a two-layer GCN, beside ridge regressions updated in "
            "closed form. The protocol is that of “Is graph unlearning ready for practice?” (ICLR 2026), as far as it "
            "is described and published. 5 % of the training nodes are deleted. The GCN is trained for 200 epochs "
            "with the softmax. The linear model is at its optimum for lambda 1e-4, with the softmax, or with the "
            "squared loss as a ridge regression. Agreement is the share of test nodes that get the class that "
            "retraining gives them. Distances to retraining are of the logits on test nodes, and of the parameters "
            "relative to their norm. A ridge regression is compared with its own retraining. The rows “nothing "
            "forgotten” are the model before the deletion; a method with the same figures has forgotten nothing. For "
            "wrong labels, each node to be deleted is trained with another class. The figure is the share of them "
            "that the model gives that class on the graph before. Memory is what the first deletion takes at its "
            "peak, in a process of its own. U-LiRA separates models that unlearned a node from models that never had "
            "it, by the parameters alone. GIF and IDEA take 100 steps of their series, MEGU 30 and GNNDelete 3,000 "
            "steps of descent, as in their authors’ code. " + _certified(results),
            [("", table(results))],
        )
    ]


def table(results: Results) -> Table:
    """Return a row for each graph and method; without results, no rows."""
    rows = []
    for dataset in results.datasets(_EXPERIMENT):
        for method in results.methods(_EXPERIMENT, dataset):
            if method in _KINDS:
                rows.append(_row(results, dataset, method, _KINDS[method], "before"))
            rows.append(_row(results, dataset, method, method, "after"))
    return Table(_HEAD, rows)


def _row(results: Results, dataset: str, method: str, name: str, when: str) -> list[str]:
    key = (_EXPERIMENT, dataset, method, DELETED)
    costs = [spread(results.values(*key, each)) if when == "after" else "–" for each in ("seconds", "peak_mib")]
    attacked = results.mean("lira", dataset, method, f"{losses_of(method)[-1]}, {NEVER_THERE_QUESTION}", "auc")
    area = "not measured" if attacked is None else f"{100 * attacked:.1f}"
    return [
        name,
        called(dataset),
        _EXACT.get(method, "no") if when == "after" else "no",
        percent(results.values(*key, f"fidelity_{when}")),
        *(spread(results.values(*key, f"{each}_{when}")) for each in ("logits", "parameters")),
        percent(results.values(*key, f"accuracy_{when}")),
        *costs,
        percent(results.values(_EXPERIMENT, dataset, method, MISLABELLED, f"given_{when}")),
        area if when == "after" else "–",
        str(len(results.values(*key, "seconds"))),
    ]


def _certified(results: Results) -> str:
    """Return a sentence about the noise of IDEA, if it was measured."""
    amounts = []
    for dataset in results.datasets(_EXPERIMENT):
        for method in FIELD:
            noise, needed = (
                results.mean(_EXPERIMENT, dataset, method, DELETED, each) for each in ("noise", "certified_noise")
            )
            if noise and needed:
                amounts.append(f"{method} on {called(dataset)} adds {number(noise)} of the {number(needed)}")
    if not amounts:
        return ""
    return (
        "IDEA’s noise is what its authors’ code adds. Its Theorem 3 asks for more at (1, 1e-4), with the constants of "
        f"that code: {'; '.join(amounts)}."
    )
