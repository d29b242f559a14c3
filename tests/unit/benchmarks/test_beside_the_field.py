"""The protocol beside other papers' methods, and its table."""

from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.linear import remaining
from benchmarks.paper.forgetting.field import DELETED, MISLABELLED, field, mislabelled
from benchmarks.paper.inference.lira import NEVER_THERE_QUESTION
from benchmarks.paper.memory import peak
from benchmarks.paper.setting import drawn
from benchmarks.paper.units import Unit, graph_of
from benchmarks.report.field import table
from benchmarks.report.results import Results

pytestmark = pytest.mark.ci

TINY = "synthetic:n=60,d=12,classes=3,seed=1"


def test_retraining_is_its_own_reference_and_idea_says_how_much_noise_its_theorem_asks_for() -> None:
    records: list[dict[str, Any]] = []
    for method in ("retraining", "idea, linear"):
        unit = Unit("field", TINY, method, 0)
        cases = dict(field(graph_of(unit), unit))
        records.append({"experiment": "field", "dataset": TINY, "method": method, "seed": 0, "cases": cases})
    retrained, noisy = (record["cases"][DELETED] for record in records)
    assert (retrained["fidelity_after"], retrained["logits_after"], retrained["parameters_after"]) == (1.0, 0.0, 0.0)
    # Before the deletion both are the same model, away from retraining; noise moves the parameters.
    assert retrained["parameters_before"] == pytest.approx(noisy["parameters_before"]) != 0
    assert noisy["parameters_after"] != pytest.approx(noisy["parameters_before"], rel=1e-3)
    assert noisy["certified_noise"] > noisy["noise"] == 0.6
    assert set(records[0]["cases"][MISLABELLED]) == {
        f"{figure}_{when}" for figure in ("accuracy", "given") for when in ("before", "after", "retrained")
    }
    case = f"softmax, {NEVER_THERE_QUESTION}"
    attacked = {"experiment": "lira", "dataset": TINY, "method": "idea, linear", "seed": 0}
    rows = table(Results([*records, {**attacked, "cases": {case: {"auc": 0.75}}}])).rows
    assert [row[0] for row in rows] == ["linear model, nothing forgotten", "retraining", "idea, linear"]
    assert [row[2] for row in rows] == ["no", "yes", "no"]
    assert [row[-2] for row in rows] == ["–", "not measured", "75.0"]


@pytest.mark.parametrize("method", ["closed-form sgc", "graph editor"])
def test_a_ridge_regression_is_compared_with_its_own_retraining(method: str) -> None:
    unit = Unit("field", TINY, method, 0)
    record = {"experiment": "field", "dataset": TINY, "method": method, "seed": 0}
    cases = dict(field(graph_of(unit), unit))
    figures = cases[DELETED]
    assert figures["fidelity_after"] == 1.0
    for distance in ("logits", "parameters"):
        assert figures[f"{distance}_after"] == pytest.approx(0.0, abs=1e-9)
        assert figures[f"{distance}_before"] != pytest.approx(0.0, abs=1e-3)
    case = f"squared, {NEVER_THERE_QUESTION}"
    attacked = record | {"experiment": "lira", "cases": {case: {"auc": 0.5}}}
    before, after = table(Results([record | {"cases": cases}, attacked])).rows
    assert before[0] == f"{method}’s ridge regression, nothing forgotten"
    assert (before[2], after[2], after[-2]) == ("no", "yes, of ridge regression", "50.0")


def test_only_nodes_to_be_deleted_get_a_wrong_label() -> None:
    graph = graph_of(Unit("field", TINY, "retraining", 0))
    wrong, nodes = mislabelled(graph, 0), drawn(graph, 0.05, 0)
    np.testing.assert_array_equal(np.flatnonzero(wrong.labels != graph.labels), nodes)
    np.testing.assert_array_equal(remaining(wrong, nodes).labels, remaining(graph, nodes).labels)


def test_peak_memory_is_what_was_used_at_once() -> None:
    found, megabytes = peak(lambda: float(np.ones(8 << 20).sum()))
    assert found == 8 << 20
    assert 60 < megabytes < 200


def test_memory_that_the_process_freed_before_counts_when_it_is_taken_again() -> None:
    def small() -> int:
        return len([np.ones(2_000) for _ in range(4_000)])  # too small to be returned when they are freed

    small()
    found, megabytes = peak(small)
    assert found == 4_000
    assert 50 < megabytes < 200
