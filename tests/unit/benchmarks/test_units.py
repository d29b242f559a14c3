"""Units of the paper's experiments: their measurements, and that none is measured twice."""

import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from benchmarks.baselines.catalogue import METHODS
from benchmarks.paper.experiments import EXPERIMENTS, plan
from benchmarks.paper.runner import Runner, UnitError, reproduce
from benchmarks.paper.setting import ARXIV, CERTIFIED, CORA_ALONE, SMALL, is_network
from benchmarks.paper.units import DIED, MEASURED, OUT_OF_TIME, Unit, graph_of, read
from projector.errors import GraphError

pytestmark = pytest.mark.ci

TINY = "synthetic:n=60,d=12,classes=3,seed=1"


def test_weights_of_edges_are_refused_because_the_methods_have_none(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    np.savez(path, edge_index=[[0, 1], [1, 0]], edge_weight=[2.0, 2.0], x=np.eye(2), y=np.arange(2))
    with pytest.raises(GraphError, match="weights of edges"):
        graph_of(Unit("injection", str(path), "retraining", 0))


def test_of_injection_and_closeness_no_more_is_left_out_than_is_named() -> None:
    units = {(unit.experiment, unit.dataset, unit.method) for unit in plan(seeds=1)}
    networks = {name for name in METHODS if is_network(name)}
    left_out = {
        (experiment, method)
        for experiment in ("injection", "closeness")
        for dataset in (*SMALL, ARXIV)
        for method in METHODS
        if (experiment, dataset, method) not in units
        and not (method in (*CERTIFIED, *CORA_ALONE) and dataset != "cora")
        and not (method in networks and dataset == ARXIV)
    }
    # A retrained network is its own reference.
    far = {name for name in networks if "metis, mean" not in name or "graphsaint" in name}
    assert left_out == {("closeness", name) for name in far}


def test_erasers_of_networks_are_measured_on_every_graph() -> None:
    units = {(unit.experiment, unit.dataset, unit.method) for unit in plan(seeds=1)}
    for method in ("graph eraser, gcn, metis, mean", "graph eraser, sage, metis, mean"):
        for dataset in (*SMALL, ARXIV):
            there = {each for each in ("injection", "accuracy") if (each, dataset, method) in units}
            assert there == {"accuracy" if dataset == ARXIV else "injection"}


def test_the_curves_with_diffusion_are_planned_once_on_the_small_graphs() -> None:
    diffused = [unit for unit in plan(("robustness",)) if "with diffusion" in unit.method]
    assert {unit.dataset for unit in diffused} == set(SMALL[:3])
    assert len(diffused) == len(set(diffused)) == 2 * 3


@pytest.mark.needs("git")
def test_a_unit_is_one_record_and_is_not_run_again_and_one_that_takes_too_long_is_recorded(tmp_path: Path) -> None:
    chosen, lines = plan(("injection",), (TINY,), ("retraining",), 2), list[str]()
    reproduce(chosen[:1], tmp_path, lines.append, limit_s=0.0)
    (late,) = read(tmp_path)
    assert (late["outcome"], late["cases"]) == (OUT_OF_TIME, {})
    assert {"commit", "versions", "device", "date", "load"} <= set(late)
    assert OUT_OF_TIME in lines[1]

    missing = Unit("injection", TINY, "no such method", 0)
    assert reproduce([missing, *chosen], tmp_path, lines.append) == [missing]
    assert "no such method" in lines[3]
    again, found = read(tmp_path)
    assert again == late
    assert (found["outcome"], found["method"], found["seed"]) == (MEASURED, "retraining", 1)
    assert set(found["cases"]) == {"0.05", "0.1"}
    assert np.isfinite(found["cases"]["0.1"]["accuracy_after"])
    assert found["graph"]["nodes"] == 60
    assert lines[2] == "3 units, 1 of them there."
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.needs("git")
@pytest.mark.parametrize(("experiment", "shared"), [("batches", False), ("dependency", True)])
def test_units_share_a_process_unless_they_measure_memory(tmp_path: Path, experiment: str, *, shared: bool) -> None:
    runner, method = Runner(tmp_path), EXPERIMENTS[experiment].methods[0]
    processes = set()
    for seed in range(2):
        assert runner.run(Unit(experiment, TINY, method, seed)) == MEASURED
        processes |= {each.pid for each in multiprocessing.active_children()}
    runner.stop()
    assert len(processes) == (1 if shared else 2)


@pytest.mark.needs("git")
def test_a_process_that_dies_is_recorded_and_replaced_and_code_that_raises_is_not_a_result(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    unit, other = plan(("injection",), (TINY,), ("retraining",), 2)
    missing = Unit("injection", TINY, "no such method", 0)
    with pytest.raises(UnitError, match="no such method"):
        runner.run(missing)
    assert read(tmp_path) == []
    assert runner.run(unit) == MEASURED
    multiprocessing.active_children()[0].kill()
    assert runner.run(other) == DIED
    assert [record["outcome"] for record in read(tmp_path)] == [MEASURED, DIED]
