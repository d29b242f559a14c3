"""Versions of ridge regressions under attack: what the attackers know of their answers, and their reference."""

import numpy as np
import pytest

from benchmarks.baselines.linear import stacked
from benchmarks.baselines.ridge import EDITOR_TEMPERATURE, ClosedFormSgc, Editing, GraphEditor
from benchmarks.paper.inference.versions import AUDITED, SEEN, pairs
from benchmarks.paper.units import Unit, graph_of
from projector import ModelSpec
from projector.network.spec import LossKind
from tests.support.mathematics.baselines import small_graph

pytestmark = pytest.mark.ci

SPEC = ModelSpec(loss=LossKind.SQUARED, regularization=1e-2)


def test_graph_editor_answers_as_a_ridge_regression_on_one_hot_targets_at_its_temperature() -> None:
    graph = small_graph(nodes=60, features=5)
    edited, plain = GraphEditor(SPEC, Editing.CLOSED_FORM).fit(graph), ClosedFormSgc(SPEC).fit(graph)
    scores = plain.predict_on(graph)  # at the temperature of models without a fitted one
    raised = scores ** (0.2 / EDITOR_TEMPERATURE)
    np.testing.assert_allclose(edited.predict(), raised / raised.sum(axis=1, keepdims=True), atol=1e-12)
    shared = 2 * stacked(plain.weights) - stacked(plain.weights).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(stacked(edited.weights), shared, atol=1e-10)


@pytest.mark.parametrize("method", ["closed-form sgc", "graph editor", "retraining"])
def test_an_auditor_retrains_a_model_of_the_same_kind(method: str) -> None:
    unit = Unit("identification", "synthetic:n=60,d=8,classes=3,seed=1", method, 0)
    graph = graph_of(unit)
    nodes = [each[None] for each in np.flatnonzero(graph.train_mask)[:3]]
    found = list(pairs(graph, unit, nodes))
    assert [each.name for each in found] == [SEEN, AUDITED] * 3
    for seen, audited in zip(found[::2], found[1::2], strict=True):
        assert np.abs(seen.after.answers - seen.before.answers).max() > 1e-3
        np.testing.assert_allclose(audited.after.answers, audited.before.answers, atol=1e-7)
