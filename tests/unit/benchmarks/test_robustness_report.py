"""Verdicts on robustness, membership inference and support vector machines, and their parts of the page."""

from typing import Any

import pytest

from benchmarks.paper.forgetting.robustness import DENSE, SPARSE
from benchmarks.paper.setting import SMOOTHED_HINGE
from benchmarks.report.claims.judging import Verdict
from benchmarks.report.claims.robustness import largest_change, largest_step, pooled
from benchmarks.report.page import page
from benchmarks.report.results import LETHE, RETRAINED, Results
from tests.support.results import judged, measured, unit

GCN = "gcn, graphsaint"


def curve(method: str, *after: float, before: float = 0.8, **fields: Any) -> dict[str, Any]:
    cases = {
        share: {"accuracy_before": before, "accuracy_after": each}
        for share, each in zip(("0.01", "0.1", "0.2"), after, strict=True)
    }
    return unit("robustness", method, cases, **fields)


def by_degree(method: str, dense: float, sparse: float, **fields: Any) -> dict[str, Any]:
    cases = {
        case: {"accuracy_before": 0.8, "accuracy_after": each, "seconds": seconds}
        for case, each, seconds in ((DENSE, dense, 0.0625), (SPARSE, sparse, 0.0417))
    }
    return unit("degrees", method, cases, **fields)


def attacked(method: str, deleted: tuple[float, float], kept: float = 0.5, others: float = 0.6) -> dict[str, Any]:
    def figures(shift: float) -> dict[str, float]:
        told = {"kept": (0.5, kept), "others": (0.6, others), "deleted": deleted, "balanced": (0.55, 0.55)}
        told["accuracy"] = (0.8, 0.7)
        return {f"{each}_{when}": v + shift for each, pair in told.items() for when, v in zip(WHEN, pair, strict=True)}

    return unit("membership", method, {"split 0": figures(-0.01), "split 1": figures(0.01)})


WHEN = ("before", "after")


def trained(**figures: float) -> dict[str, Any]:
    names = ("before", "projected", "tuned", "tuned_alone", "retrained")
    found = {f"{figure}_{name}": 0.5 for figure in ("channel", "weights", "accuracy") for name in names}
    return unit("svm", SMOOTHED_HINGE, {"0.05": {"outside_span": 1e-15, "imbalance": 0.1, **found, **figures}})


#: (claim, results in which it holds, the same with figures in which it does not)
FLIPS = [
    (
        "The projection’s accuracy changes less than that of GNNs",
        [curve(LETHE, 0.8, 0.79, 0.79), curve("gat", 0.8, 0.82, 0.8)],
        [curve(LETHE, 0.8, 0.77, 0.79), curve("gat", 0.8, 0.82, 0.8)],
    ),
    (
        "The projection’s accuracy fluctuates less",
        [curve(LETHE, 0.7, 0.69, 0.68), curve(GCN, 0.8, 0.82, 0.8)],
        [curve(LETHE, 0.7, 0.69, 0.66), curve(GCN, 0.8, 0.82, 0.81)],
    ),
    (
        "Deleting dense nodes hurts sparse graphs and helps dense ones",
        [by_degree(RETRAINED, 0.79, 0.8)],
        [by_degree(RETRAINED, 0.81, 0.8)],
    ),
    (
        "The projection is slightly better than retraining whoever is deleted",
        [by_degree(LETHE, 0.8, 0.8), by_degree(RETRAINED, 0.79, 0.79)],
        [by_degree(LETHE, 0.8, 0.8), by_degree(RETRAINED, 0.79, 0.8)],
    ),
    (
        "Before a deletion the classifier takes its nodes for trained on",
        [attacked(LETHE, (0.45, 0.6))],
        [attacked(LETHE, (0.55, 0.6))],
    ),
    ("Membership inference sees the deletion", [attacked(LETHE, (0.4, 0.6))], [attacked(LETHE, (0.4, 0.4))]),
    (
        "The projection hides a deletion from membership inference as well as retraining",
        # Retrained on few nodes a model is less sure of everybody: what counts is the deleted beside the others.
        [attacked(LETHE, (0.4, 0.5), others=0.5), attacked(RETRAINED, (0.4, 0.8), others=0.8)],
        [attacked(LETHE, (0.4, 0.5), others=0.6), attacked(RETRAINED, (0.4, 0.6))],
    ),
    (
        "What it says of the others hardly changes",
        [attacked(LETHE, (0.4, 0.6), kept=0.49, others=0.61)],
        [attacked(LETHE, (0.4, 0.6), kept=0.49, others=0.63)],
    ),
    ("A support vector machine’s weights lie in the span of its rows", [trained()], [trained(outside_span=1e-3)]),
    ("The SVM’s dual as printed", [trained(imbalance=1e-9)], [trained()]),
    ("The projection takes an SVM’s injected channel away", [trained(channel_projected=1e-14)], [trained()]),
    ("Fine-tuning alone leaves an SVM’s channel", [trained()], [trained(channel_tuned_alone=1e-14)]),
]


@pytest.mark.parametrize(("name", "holding", "failing"), FLIPS, ids=[flip[0] for flip in FLIPS])
def test_a_verdict_is_what_the_figures_say(name: str, holding: list[Any], failing: list[Any]) -> None:
    assert measured(name).verdict is Verdict.UNMEASURED
    assert measured(name, *holding).verdict is Verdict.REPRODUCED
    assert measured(name, *failing).verdict is Verdict.REFUTED
    others = [{**record, "dataset": "pubmed"} for record in holding]
    both = measured(name, *others, *failing)
    assert both.verdict is Verdict.REFUTED
    assert "Pubmed" not in both.words.partition(" It holds in the others")[0]


def test_what_could_be_better_is_to_be_better_on_more_than_half_of_the_graphs() -> None:
    name = "Linear models are better than GNNs whoever is deleted"
    records = [by_degree(LETHE, 0.8, 0.8), by_degree("gat", 0.82, 0.82)]
    assert judged(name, *records).verdict is Verdict.REFUTED
    for dataset, verdict in (("pubmed", Verdict.REFUTED), ("citeseer", Verdict.REPRODUCED)):
        records += [{**each, "dataset": dataset} for each in (by_degree(LETHE, 0.8, 0.8), by_degree("gat", 0.7, 0.7))]
        assert judged(name, *records).verdict is verdict
    words = judged(name, *records).words
    assert f"{LETHE} on 2 of 3 graphs ahead of gat" in words
    assert f"least on Cora, one seed: {LETHE} 80 %, gat 82 %." in words


def test_deleting_dense_nodes_is_to_help_a_dense_graph() -> None:
    dense = {"nodes": 100, "edges": 3000, "training": 50, "test": 20, "features": 5, "classes": 2}
    name = "Deleting dense nodes hurts sparse graphs and helps dense ones"
    assert judged(name, by_degree(RETRAINED, 0.81, 0.8, graph=dense)).verdict is Verdict.REPRODUCED
    assert judged(name, by_degree(RETRAINED, 0.79, 0.8, graph=dense)).verdict is Verdict.REFUTED


def test_accuracies_are_compared_on_the_seeds_that_both_have() -> None:
    name = "The projection’s accuracy changes less than that of GNNs"
    steady, other = curve(LETHE, 0.8, 0.79, 0.79), curve("gat", 0.8, 0.82, 0.8)
    assert judged(name, steady, other, curve(LETHE, 0.1, 0.1, 0.1, seed=1)).verdict is Verdict.REPRODUCED
    assert judged(name, steady, curve("gat", 0.8, 0.8, 0.8, seed=1)).verdict is Verdict.UNMEASURED


def test_change_is_from_before_and_a_step_from_the_share_before() -> None:
    made = [("0.01", 0.8, 0.79), ("0.02", 0.8, 0.82), ("0.05", 0.8, 0.81)]
    assert largest_change(made) == pytest.approx(0.02)
    assert largest_step(made) == pytest.approx(0.03)
    assert largest_step(made[:1]) == 0


def test_the_page_shows_every_part_with_its_figures() -> None:
    apart = {"nodes": 60, "requests": 20, "apart": 2e-15, "at_once": 0.2, "one_by_one": 0.2}
    apart |= {"seconds": 2.0, "seconds_at_once": 0.1}
    records = [
        curve(LETHE, 0.8, 0.79, 0.765),
        by_degree(LETHE, 0.812, 0.8),
        attacked(LETHE, (0.4, 0.6123)),
        attacked(RETRAINED, (0.4, 0.5678)),
        unit("sequential", LETHE, {"0.05": apart}),
        trained(channel_before=17.5),
    ]
    text = page(Results(records))
    for figure in ("76.5", "3.50", "81.2", "0.0625", "0.0417", "61.2 ± 1.4 (2)", "56.8 ± 1.4 (2)", "2.0e-15", "17.5"):
        assert f"<td>{figure}</td>" in text
    assert "50.63 ± 0.19 (0.06 s)" in text
    # Beside the paper's own cell, too.
    assert "<td>58.38 ± 11.75</td><td>61.2 ± 1.4 (2)</td>" in text
    assert pooled(Results(records), "cora", LETHE, "deleted_after") == pytest.approx([0.6023, 0.6223])
