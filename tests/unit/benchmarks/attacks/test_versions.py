"""Ridge regressions under attack: what the attackers know of their answers, and what they are audited against."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.baselines.catalogue import build
from benchmarks.baselines.linear import stacked
from benchmarks.baselines.ridge import EDITOR_TEMPERATURE, ClosedFormSgc, Editing, GraphEditor
from benchmarks.paper.experiments import plan
from benchmarks.paper.inference.versions import AUDITED, PLANTED, SEEN, pairs, victim_of
from benchmarks.paper.setting import ARXIV, SMALL
from benchmarks.paper.units import Unit, graph_of
from projector import ModelSpec
from projector.network.losses import UNFITTED_TEMPERATURE
from projector.network.spec import LossKind
from tests.support.mathematics.baselines import small_graph

pytestmark = pytest.mark.ci

RIDGE = ("closed-form sgc", "graph editor")
SPEC = ModelSpec(loss=LossKind.SQUARED, regularization=1e-2)


def test_graph_editor_answers_as_a_ridge_regression_on_one_hot_targets_at_its_temperature() -> None:
    graph = small_graph(nodes=60, features=5)
    edited, plain = GraphEditor(SPEC, Editing.CLOSED_FORM).fit(graph), ClosedFormSgc(SPEC).fit(graph)
    scores = plain.predict_on(graph)  # at the temperature of models without a fitted one
    raised = scores ** (UNFITTED_TEMPERATURE / EDITOR_TEMPERATURE)
    np.testing.assert_allclose(edited.predict(), raised / raised.sum(axis=1, keepdims=True), atol=1e-12)
    shared = 2 * stacked(plain.weights) - stacked(plain.weights).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(stacked(edited.weights), shared, atol=1e-10)


@pytest.mark.parametrize("method", RIDGE)
def test_the_attackers_own_model_answers_as_the_attacked_one(method: str) -> None:
    unit = Unit("identification", "synthetic:n=400,d=8,classes=3,seed=1", method, 0)
    graph = graph_of(unit)
    known = victim_of(graph, unit).known
    public = replace(graph, train_mask=~np.isin(np.arange(graph.nodes), known.candidates))
    fitted = build(method, known.spec, 0, known.spec.regularization).fit(public)
    np.testing.assert_allclose(known.answers, fitted.predict(), atol=1e-7)


@pytest.mark.parametrize("method", [*RIDGE, "lethe, projection and repair", PLANTED])
def test_an_auditor_retrains_a_model_of_the_same_kind(method: str) -> None:
    unit = Unit("identification", "synthetic:n=60,d=8,classes=3,seed=1", method, 0)
    graph = graph_of(unit)
    nodes = [each[None] for each in np.flatnonzero(graph.train_mask)[:3]]
    found = list(pairs(graph, unit, nodes))
    assert [each.name for each in found] == [SEEN, AUDITED] * 3
    for seen, audited in zip(found[::2], found[1::2], strict=True):
        assert np.abs(seen.after.answers - seen.before.answers).max() > 1e-3
        apart = np.abs(audited.after.answers - audited.before.answers).max()
        assert apart > 1e-3 if method == PLANTED else apart < 1e-7


def test_fine_tuned_weights_are_not_audited() -> None:
    unit = Unit("identification", "synthetic:n=60,d=8,classes=3,seed=1", "graph editor, fine-tuned", 0)
    graph = graph_of(unit)
    assert [each.name for each in pairs(graph, unit, [np.flatnonzero(graph.train_mask)[:1]])] == [SEEN]


@pytest.mark.parametrize("experiment", ["identification", "reconstruction"])
def test_ridge_regressions_are_attacked_on_all_six_graphs(experiment: str) -> None:
    planned = {(unit.dataset, unit.method) for unit in plan((experiment,), seeds=1)}
    assert {(dataset, method) for dataset in (*SMALL, ARXIV) for method in RIDGE} <= planned
