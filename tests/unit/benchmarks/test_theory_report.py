"""Verdicts on the paper's theorems follow the figures, and the page shows them."""

from typing import Any

import pytest

from benchmarks.paper.theory.expressiveness import LOOPS
from benchmarks.paper.theory.fine_tuning import DIFFUSED, PLAIN
from benchmarks.report.claims.judging import Verdict
from benchmarks.report.page import page
from benchmarks.report.paper_tables import DELTA, FINETUNING, shown
from benchmarks.report.results import Results
from tests.support.results import judged, measured, unit

LOOPED = next(iter(LOOPS))


def of_rows(delta: float, mean: float, scaling: str = "raw", **fields: Any) -> dict[str, Any]:
    figures = {"delta": delta, "mean_row": mean, "longest_row": 5.0, "alone": 4, "nodes": 2708}
    return unit("delta", scaling, {"all": figures}, **fields)


def bounded(bound: float = 10.0, distance: float = 1.0, **changed: float) -> dict[str, Any]:
    figures = {"bound": bound, "distance": distance, "triangle": 20.0, "delta": 0.5, "condition": 9.0}
    return unit("theorem", PLAIN, {"1": {**figures, "longest_row": 2.0, "B_x": 4.0, "P_s": 0.6, **changed}})


def tuned(*stages: dict[str, dict[str, float]], method: str = PLAIN) -> dict[str, Any]:
    return unit("fine-tuning", method, {name: figures for stage in stages for name, figures in stage.items()})


def expressive(case: str = "decomposed", method: str = LOOPED, **figures: float) -> dict[str, Any]:
    return unit("expressiveness", method, {case: {"nodes": 2708, **figures}})


def dual(change: float) -> dict[str, Any]:
    figures = {"smallest_dual": 0.5, "least_change": 1.0, "change_at_smallest": change}
    return unit("duals", "retraining", {"misclassified": figures})


def at(stage: str, **figures: float) -> dict[str, dict[str, float]]:
    return {stage: figures}


#: (claim, results in which it holds, the same with figures in which it does not)
FLIPS = [
    ("delta is small", of_rows(0.3, 0.7), of_rows(1.0, 0.7)),
    ("delta and the mean row have the printed size", of_rows(0.2983, 0.6925), of_rows(0.3015, 0.6923)),
    ("The bound of Theorem 1 holds", bounded(), bounded(distance=11.0)),
    ("The bound of Theorem 1 says something", bounded(), bounded(bound=1e301)),
    ("The rows are as short as Theorem 1’s proof takes them for", bounded(), bounded(longest_row=2.5)),
    ("Proposition 2’s condition", bounded(), bounded(delta=9.5)),
    ("Fine-tuning goes as 1/K", tuned(at("10", gap=1.0, rate=2.0)), tuned(at("10", gap=3.0, rate=2.0))),
    (
        "Fine-tuning adds little",
        tuned(at("after", accuracy=0.8), at("1000", accuracy=0.805), at("repaired", accuracy=0.805)),
        tuned(at("after", accuracy=0.8), at("1000", accuracy=0.805), at("repaired", accuracy=0.82)),
    ),
    (
        "Training and validation accuracy drop",
        tuned(at("before", train=0.9, validation=0.8), at("after", train=0.89, validation=0.79)),
        tuned(at("before", train=0.9, validation=0.8), at("after", train=0.89, validation=0.8)),
    ),
    (
        "Fine-tuning raises training accuracy, by little",
        tuned(at("after", train=0.9), at("1000", train=0.905), at("repaired", train=0.905)),
        tuned(at("after", train=0.9), at("1000", train=0.905), at("repaired", train=0.9)),
    ),
    (
        "Without diffusion, fine-tuning ends as retraining does",
        tuned(at("1000", accuracy=0.8), at("retrained", accuracy=0.805)),
        tuned(at("1000", accuracy=0.8), at("retrained", accuracy=0.82)),
    ),
    (
        "With diffusion, the projection is always better than retraining",
        tuned(at("after", accuracy=0.81), at("retrained", accuracy=0.8), method=DIFFUSED),
        tuned(at("after", accuracy=0.79), at("retrained", accuracy=0.8), method=DIFFUSED),
    ),
    *(
        (name, tuned(*held, method=DIFFUSED), tuned(*held[:2], at(end, accuracy=0.78), method=DIFFUSED))
        for name, ends in (
            ("With diffusion, the projection is always better than retraining", ("1000", "repaired")),
            ("Fine-tuning adds little", ("1000",)),
        )
        for end in ends
        for held in [(at("after", accuracy=0.81), at("retrained", accuracy=0.8), at(end, accuracy=0.81))]
    ),
    (
        "The conditions of the proposition on expressiveness are mild",
        expressive(repeats=0, missed=0),
        expressive("proven", repeats=2),
    ),
    (
        "A linear GNN is any function of the nodes of a real graph",
        expressive(missed=0),
        expressive("proven", missed=15),
    ),
    ("Unlearning without modification", dual(1e-9), dual(0.1)),
]


@pytest.mark.parametrize(("name", "holding", "failing"), FLIPS, ids=[flip[0] for flip in FLIPS])
def test_a_verdict_is_what_the_figures_say(name: str, holding: dict[str, Any], failing: dict[str, Any]) -> None:
    assert measured(name).verdict is Verdict.UNMEASURED
    assert measured(name, holding).verdict is Verdict.REPRODUCED
    assert measured(name, {**holding, "dataset": "pubmed"}, failing).verdict is Verdict.REFUTED
    assert "Cora" in measured(name, failing).words


def test_no_seed_of_a_theorem_may_fail() -> None:
    other = {**bounded(distance=11.0), "seed": 1}
    assert measured("The bound of Theorem 1 holds", bounded(), other).verdict is Verdict.REFUTED


def test_a_theorem_that_a_test_refutes_is_refuted_whatever_was_measured() -> None:
    for name, record in (
        ("The bound of Theorem 1 holds", bounded()),
        ("Fine-tuning goes as 1/K", tuned(at("10", gap=1.0, rate=2.0))),
    ):
        finding = judged(name, record)
        assert finding.verdict is Verdict.REFUTED
        assert finding.words.startswith("It holds in")
        assert finding.words.endswith("It is false in general: see the smallest example.")
        assert judged(name).words == "It is false in general: see the smallest example."


def test_coras_delta_is_compared_in_one_scaling() -> None:
    name, other = "Cora’s delta is the largest", of_rows(0.5, 1.0, dataset="citeseer")
    assert judged(name, of_rows(1.0, 1.0), other).verdict is Verdict.REPRODUCED
    assert judged(name, of_rows(0.4, 1.0), other).verdict is Verdict.REFUTED
    assert judged(name, of_rows(0.4, 1.0, "row norms of 1"), other).verdict is Verdict.UNMEASURED


def test_a_graph_that_is_not_decomposed_proves_no_claim() -> None:
    proven = expressive("proven", missed=0)
    assert judged("A linear GNN is any function of the nodes of a real graph", proven).verdict is Verdict.UNMEASURED


def test_the_papers_tables_show_every_scaling_and_every_stage() -> None:
    results = Results(
        [
            of_rows(1.0, 1.02),
            of_rows(0.302, 0.237, "row norms of 1"),
            {**tuned(at("10", accuracy=0.7)), "dataset": "ogbn_arxiv_llm"},
        ]
    )
    (cora,) = (row for row in DELTA.rows if row.dataset == "Cora")
    assert [shown(ours, results) for _, ours in cora.cells] == [
        "1 (raw), 0.302 (row norms of 1)",
        "1.02 (raw), 0.237 (row norms of 1)",
    ]
    assert [shown(ours, results) for _, ours in FINETUNING.rows[0].cells][2] == "70.0"


def test_the_page_has_a_part_for_each_experiment() -> None:
    stages = {"before": {"accuracy": 0.5}, "10": {"accuracy": 0.625, "gap": 0.125}}
    proof = {"nodes": 2708, "components": 78, "twins": 245, "repeats": 316, "missed": 15}
    records = [
        of_rows(1.0, 1.02),
        bounded(bound=1e301),
        unit("fine-tuning", DIFFUSED, stages),
        unit("expressiveness", LOOPED, {"proven": proof, "decomposed": {**proof, "repeats": 358}}),
        dual(0.1),
    ]
    text = page(Results(records))
    for words in ("4 of 2,708", "1.0e+301", "10 steps, with diffusion", "≥ 316; 358", "Cora, misclassified", "62.5"):
        assert words in text
    # Without a decomposition the lower bound stands alone.
    alone = page(Results([unit("expressiveness", LOOPED, {"proven": proof})]))
    assert "≥ 316; not decomposed" in alone
