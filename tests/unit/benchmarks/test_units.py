"""Units of the paper's experiments: what they measure, and that none is measured twice."""

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.catalogue import METHODS, build, is_squared
from benchmarks.baselines.linear import remaining
from benchmarks.baselines.protocol import Array, BaselineError, Trained
from benchmarks.paper.accuracies import accuracies
from benchmarks.paper.experiments import EXPERIMENTS, LIMITS, plan
from benchmarks.paper.forgetting.closeness import closeness, retraining_of
from benchmarks.paper.forgetting.identity import identity
from benchmarks.paper.forgetting.injection import injection, regularization
from benchmarks.paper.forgetting.stream import stream
from benchmarks.paper.runner import Runner, UnitError, reproduce
from benchmarks.paper.setting import ARXIV, CERTIFIED, SMALL, drawn, is_network, spec_of
from benchmarks.paper.units import DIED, MEASURED, OUT_OF_TIME, Unit, graph_of
from projector import ModelSpec
from projector.network.spec import LossKind

TINY = "synthetic:n=60,d=12,classes=3,seed=1"
LINEAR = [name for name in METHODS if not is_network(name) and "eraser" not in name]
#: Option 2 as printed is among them, wrong as its other rows are: the channel's row of M_remain is zero. So is a Newton
#: step without noise: the other rows have nothing of the channel, and along it F is lambda/2 |w|^2, which it solves.
NOTHING_LEFT = {
    "retraining",
    "lethe, projection",
    "lethe, projection and repair",
    "projector, option 1 as printed",
    "projector, option 2 as printed",
    "projector, official code",
    "influence+, authors' code",
    "fisher+, without noise",
    "lethe, projection, with diffusion",
    "retraining, with diffusion",
}


@pytest.mark.parametrize("method", [*LINEAR, "graph eraser, linear, metis, mean"])
def test_an_injected_channel_is_left_by_methods_with_noise_alone(method: str) -> None:
    unit = Unit("injection", TINY, method, 0)
    for _, found in injection(graph_of(unit), unit):
        before, after = found["channel_norm_before"], found["channel_norm_after"]
        assert before is not None
        assert after is not None
        assert before > 1e-2
        if method in NOTHING_LEFT or "eraser" in method or is_squared(method):
            assert after < 1e-10
        else:
            # Influence of the deleted alone leaves it for its neighbours' rows as well.
            assert after > 1e-6


def test_every_lambda_is_tried_and_one_at_which_training_does_not_end_gives_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unit = Unit("regularization", TINY, "retraining", 0)
    found: dict[str, Any] = dict(regularization(graph_of(unit), unit))
    assert list(found) == ["1e-06", "1e-05", "0.0001", "0.001", "0.01"]
    assert found["1e-06"]["channel_norm_before"] > found["0.01"]["channel_norm_before"] > 0
    assert all(each["channel_norm_after"] == 0 for each in found.values())
    assert all(0 < each["validation_after"] <= 1 for each in found.values())

    def no_minimum(*_: object) -> None:
        raise BaselineError("The minimum was not reached.", "Choose a larger lambda.")

    monkeypatch.setattr("benchmarks.paper.forgetting.injection.build", no_minimum)
    assert set(map(str, dict(regularization(graph_of(unit), unit)).values())) == {"{}"}


def test_retraining_and_repair_are_where_retraining_is_and_the_projection_is_not() -> None:
    away: dict[str, Any] = {}
    for method in ("retraining", "lethe, projection and repair", "lethe, projection"):
        unit = Unit("closeness", TINY, method, 0)
        away[method] = dict(closeness(graph_of(unit), unit))["0.1"]
    for figure in ("weights", "deleted", "remaining", "test"):
        assert away["retraining"][figure] == 0
        assert away["lethe, projection and repair"][figure] < 1e-8
        assert away["lethe, projection"][figure] > 1e-4


@pytest.mark.parametrize("method", ["influence", "graph eraser, linear, blpa, mean"])
def test_distances_of_weights_are_relative_to_the_same_weights_for_all(method: str) -> None:
    unit = Unit("closeness", TINY, method, 0)
    graph, spec = graph_of(unit), spec_of(TINY)
    nodes = drawn(graph, 0.1, 0)
    optimum = build("retraining", spec, 0, spec.regularization).fit(graph)
    left = build(method, spec, 0, spec.regularization).fit(graph).unlearn(nodes)
    away = np.linalg.norm(weights_of(left) - weights_of(optimum.unlearn(nodes)))
    expected = away / np.linalg.norm(weights_of(optimum))
    assert dict(closeness(graph, unit))["0.1"]["weights"] == pytest.approx(expected, rel=1e-9)


def test_distances_of_answers_are_of_the_nodes_that_they_name() -> None:
    unit = Unit("closeness", TINY, "influence", 0)
    graph, spec = graph_of(unit), spec_of(TINY)
    nodes = drawn(graph, 0.1, 0)
    methods = unit.method, "retraining"
    left, anew = (build(each, spec, 0, spec.regularization).fit(graph).unlearn(nodes) for each in methods)
    found, after = dict(closeness(graph, unit))["0.1"], remaining(graph, nodes)
    kept = np.setdiff1d(np.flatnonzero(graph.train_mask), nodes)
    # Those that remain answer on the graph that remains, the deleted on that of before.
    for name, asked, of in (("deleted", nodes, graph), ("remaining", kept, after), ("test", after.test_mask, after)):
        mine, theirs = left.predict_on(of), anew.predict_on(of)
        assert mine is not None
        assert theirs is not None
        apart = np.sqrt(((mine - theirs)[asked] ** 2).sum(axis=1)).mean()
        assert found[name] == pytest.approx(apart, rel=1e-9)


def weights_of(trained: Trained) -> Array:
    assert trained.weights is not None
    return trained.weights


def test_what_has_no_weights_or_hops_of_its_own_is_compared_in_its_answers() -> None:
    assert retraining_of("graph eraser, gat, bekm, mean") == "gat"
    eraser = Unit("closeness", TINY, "graph eraser, gcn, metis, mean", 0)
    diffused = Unit("closeness", TINY, "lethe, projection, with diffusion", 0)
    for _, found in closeness(graph_of(eraser), eraser):
        assert found["weights"] is None
        assert min(found[each] or 0.0 for each in ("deleted", "remaining", "test")) > 1e-3
    for _, found in closeness(graph_of(diffused), diffused):
        assert found["deleted"] is None
        assert min(found[each] or 0.0 for each in ("weights", "remaining", "test")) > 1e-4


def test_the_projection_changes_most_where_there_are_more_features_than_nodes() -> None:
    few = Unit("identity", "synthetic:n=60,d=12,classes=3,seed=1", "lethe, projection", 0)
    many = Unit("identity", "synthetic:n=60,d=90,classes=3,seed=1", "lethe, projection", 0)
    for _, found in identity(graph_of(few), few):
        assert found["unchanged"] == found["draws"]
    for _, found in identity(graph_of(many), many):
        assert found["unchanged"] == 0


def test_accuracies_and_the_stream_are_of_the_models_that_they_name() -> None:
    every = "+ diffusion, z0 = y of all but test nodes"
    for method in ("linear", "+ label reuse", "the paper's settings, learning rate 0.1", every):
        unit = Unit("accuracy", TINY, method, 0)
        measured: dict[str, Any] = dict(accuracies(graph_of(unit), unit))
        assert measured["all"]["accuracy"] > 0.5
    unit = Unit("stream", TINY, "certified removal", 0)
    found: dict[str, Any] = dict(stream(graph_of(unit), unit))
    assert list(found) == ["nodes", "edges", "features"]
    for case in found.values():
        assert case["removals"] == 18
        assert min(case["accuracy_retrained"], case["accuracy_anew"]) > 0.5
        assert case["seconds_of_one_retraining"] > 0
        assert 0 <= case["budget_spent"] <= case["budget"]
        assert case["budget_spent"] or case["retrainings"]


def test_every_method_can_be_built_at_another_lambda() -> None:
    other = ModelSpec(loss=LossKind.OVR, regularization=0.5)
    for method in METHODS:
        made = build(method, ModelSpec(loss=LossKind.OVR), 3, 0.5)
        loss = LossKind.SQUARED if is_squared(method) else LossKind.OVR
        expected = replace(other, loss=loss, diffusion="diffusion" in method)
        assert getattr(made, "spec", getattr(getattr(made, "trainer", None), "spec", None)) in (None, expected)


def test_the_plan_takes_one_seed_where_others_would_say_the_same_or_take_days() -> None:
    units = plan()
    assert len(set(units)) == len(units)
    assert {unit.experiment for unit in units} == set(EXPERIMENTS)
    assert [unit.seed for unit in units] == sorted(unit.seed for unit in units)

    def seeds(*what: str) -> int:
        return sum((unit.experiment, unit.dataset, unit.method) == what for unit in units)

    assert seeds("injection", "cora", "gcn") == seeds("injection", ARXIV, "retraining") == 5
    assert seeds("injection", "coauthor_cs", "gcn") == seeds("accuracy", "cora", "linear") == 1
    assert seeds("accuracy", "amazon_photo", "linear") == seeds("accuracy", "cora", "+ diffusion") == 5
    assert not seeds("closeness", "cora", "gcn")
    assert seeds("robustness", ARXIV, "retraining") == seeds("injection", "cora", "scalegun") == 1
    assert seeds("injection", "cora", "graph eraser, gcn, metis, mean") == 5
    assert seeds("injection", "cora", "graph eraser, gcn, bekm, mean") == 1
    assert seeds("injection", "cora", "graph eraser, linear, bekm, mean") == 5
    assert seeds("closeness", ARXIV, "graph eraser, linear, metis, mean") == 1
    assert seeds("closeness", "cora", "retraining, with diffusion") == 5
    assert seeds("closeness", "amazon_photo", "retraining, with diffusion") == 1
    assert seeds("identification", "cora", "retraining") == seeds("edges", "cora", "retraining") == 1
    assert not seeds("robustness", ARXIV, "gcn")
    assert not seeds("stream", "pubmed", "certified removal")


def test_each_limit_of_the_plan_leaves_something_out() -> None:
    asked = [
        (name, dataset, method)
        for name, experiment in EXPERIMENTS.items()
        for dataset in experiment.datasets
        for method in experiment.methods
    ]
    for limit in LIMITS:
        others = [each for each in LIMITS if each is not limit]
        held = [what for what in asked if limit.holds(*what)]
        assert any(limit.seeds < min((each.seeds for each in others if each.holds(*what)), default=5) for what in held)


def test_of_injection_and_closeness_no_more_is_left_out_than_is_named() -> None:
    units = {(unit.experiment, unit.dataset, unit.method) for unit in plan(seeds=1)}
    networks = {name for name in METHODS if is_network(name)}
    left_out = {
        (experiment, method)
        for experiment in ("injection", "closeness")
        for dataset in (*SMALL, ARXIV)
        for method in METHODS
        if (experiment, dataset, method) not in units
        and not (method in CERTIFIED and dataset != "cora")
        and not (method in networks and dataset == ARXIV)
    }
    # A network that is retrained is as close to itself as can be.
    far = {name for name in networks if "metis, mean" not in name or "graphsaint" in name}
    assert left_out == {("closeness", name) for name in far}


def test_a_unit_is_one_file_and_is_not_run_again_and_one_that_takes_too_long_is_recorded(tmp_path: Path) -> None:
    chosen, told = plan(("injection",), (TINY,), ("retraining",), 2), list[str]()
    first, second = (unit.file(tmp_path) for unit in chosen)
    reproduce(chosen[:1], tmp_path, told.append, limit_s=0.0)
    late = json.loads(first.read_text())
    assert (late["outcome"], late["cases"]) == (OUT_OF_TIME, {})
    assert {"commit", "versions", "device", "date", "load"} <= set(late)
    assert OUT_OF_TIME in told[1]

    missing = Unit("injection", TINY, "no such method", 0)
    assert reproduce([missing, *chosen], tmp_path, told.append) == [missing]
    assert "no such method" in told[3]
    assert json.loads(first.read_text()) == late
    found = json.loads(second.read_text())
    assert (found["outcome"], found["method"], found["seed"]) == (MEASURED, "retraining", 1)
    assert set(found["cases"]) == {"0.05", "0.1"}
    assert np.isfinite(found["cases"]["0.1"]["accuracy_after"])
    assert found["graph"]["nodes"] == 60
    assert told[2] == "3 units, 1 of them there."
    assert not list(tmp_path.rglob("*.partial"))


def test_a_process_that_dies_is_recorded_and_replaced_and_code_that_raises_is_not_a_result(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    unit, other = plan(("injection",), (TINY,), ("retraining",), 2)
    missing = Unit("injection", TINY, "no such method", 0)
    with pytest.raises(UnitError, match="no such method"):
        runner.run(missing)
    assert not missing.file(tmp_path).exists()
    assert runner.run(unit) == MEASURED
    multiprocessing.active_children()[0].kill()
    assert runner.run(other) == DIED
    assert json.loads(other.file(tmp_path).read_text())["outcome"] == DIED
