"""`./lethe serve --workers`: the unlearner computes with others, and gets the same result as alone."""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from lethe_client import Correction, NewNode, OutsideNode
from lethe_client.results import Accepted, Audit
from model_store.build import build_model
from projector.graph.graph import Graph
from projector.network.spec import ModelSpec
from tests.support.models.citations import cora
from tests.support.preloaded import Start
from tests.support.processes.lethe_process import LetheProcess, copied
from tests.support.processes.workers import free_port, reported_workers, until_together

pytestmark = pytest.mark.ci

__all__ = ["cora"]

#: Equal to the last digit, or up to the rounding of sums.
_EXACT = (
    *("model_version_before", "model_version_after", "rank_before", "rank_after", "directions_removed", "deleted"),
    *("repair_iterations", "repair_version", "repair_tolerance", "factor_age_s", "factor_method", "device"),
)
_ROUNDED = (
    *("injected_norm_before", "injected_norm_after", "lost_direction_norm_before", "lost_direction_norm_after"),
    *("channel_norm_before", "channel_norm_after", "weight_change", "repair_weight_change"),
    *("distance_bound_before", "distance_bound_before_relative"),
)


class Served:
    """A model served by some workers, with servers shared by others."""

    def __init__(self, start: Start, model: Path, home: Path, **settings: Any) -> None:
        copied(model, home / "model")
        self.lethe = LetheProcess(start, home, workers_port=free_port(), **settings)

    def deletes(self, nodes: Sequence[str]) -> tuple[list[Audit], NDArray[np.float64]]:
        """Run deletions one by one. Returns their records and the final weights."""
        records = [self.lethe.delete([node]).audit for node in nodes]
        assert None not in records
        return [record for record in records if record is not None], self.lethe.weights()


def assert_same_figures(of_two: Sequence[Audit], of_one: Sequence[Audit], *, repaired: bool) -> None:
    for two, one in zip(of_two, of_one, strict=True):
        assert [getattr(two, name) for name in _EXACT] == [getattr(one, name) for name in _EXACT]
        figures = {name: getattr(one, name) for name in _ROUNDED if getattr(one, name) is not None}
        close = 1e-6 if repaired else 1e-12
        assert {name: getattr(two, name) for name in figures} == pytest.approx(figures, rel=close, abs=0.0)
        assert two.span_residual is not None
        if repaired:
            assert two.span_residual < 1e-12
            assert two.distance_bound_after_relative is not None
            assert two.repair_tolerance is not None
            assert two.distance_bound_after_relative <= two.repair_tolerance
        else:
            assert two.weights_sha256_after == one.weights_sha256_after
            assert two.span_residual == pytest.approx(one.span_residual, rel=1e-6)
            assert two.distance_bound_after == pytest.approx(one.distance_bound_after, rel=1e-12)


def compare(
    start: Start,
    model: Path,
    folder: Path,
    nodes: Sequence[str],
    workers: int,
    new_servers: Callable[[], dict[str, str]],
    **settings: Any,
) -> None:
    """Check that deletions by several workers agree with those by one."""
    found, outside = [], []
    for count in (1, workers):
        served = Served(
            start, model, folder / f"home-{count}", workers=count, repair_budget=600, **new_servers(), **settings
        )
        with served.lethe.start() as lethe:
            if count == 1:
                assert reported_workers(lethe) is None
            else:
                until_together(lethe, count, of=count)
            found.append(served.deletes(nodes))
            # A node outside the graph, which the first worker predicts alone.
            with lethe.client() as client:
                outside.append(client.predict_new([OutsideNode({0: 1.0}, ["3"])]).predictions[0].probabilities)
            assert lethe.stop().status == 0
        # A worker looking for the next session may find the unlearner stopped first; nothing is lost.
        lost = [line for line in lethe.log().splitlines() if "workers.lost" in line]
        assert all("The first worker has left." in line for line in lost), lost
    (of_one, weights_of_one), (of_several, weights) = found
    assert outside[0] == pytest.approx(outside[1], abs=1e-6)
    repaired = settings["repair"] == "always"
    assert_same_figures(of_several, of_one, repaired=repaired)
    if repaired:
        bounds = sum(record[-1].distance_bound_after or 0.0 for record in (of_one, of_several))
        assert np.linalg.norm(weights - weights_of_one) <= bounds


@pytest.fixture
def new_servers(make_database: Callable[[], str], redis_url: str) -> Callable[[], dict[str, str]]:
    """Return a function that returns the session's servers, with a new database."""
    return lambda: {"database_url": make_database(), "redis_url": redis_url}


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "repair"), [(2, "never"), (4, "never"), (2, "always")])
def test_several_come_to_what_one_comes_to_on_cora(
    cora: Graph,
    tmp_path: Path,
    lethe_start: Start,
    new_servers: Callable[[], dict[str, str]],
    workers: int,
    repair: str,
) -> None:
    model = tmp_path / "model"
    build_model(cora, ModelSpec(), name="cora", dataset="cora", split="full").write(model)
    nodes = [cora.node_ids[row] for row in (0, 9, 200)]
    compare(lethe_start, model, tmp_path, nodes, workers, new_servers, repair=repair)


def changed(served: Served, *, kill: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Add, correct and delete one after another, and optionally kill a worker amid it. Returns W and predictions."""
    rows = np.random.default_rng(3).standard_normal((4, 12)).tolist()
    with served.lethe.start() as lethe, lethe.client() as client:
        label, other = client.model().classes[:2]
        steps: list[Callable[[], Accepted]] = [
            lambda: client.add(
                [NewNode("anna", rows[0], label), NewNode("bert", rows[1])], edges=[("anna", "bert"), ("bert", "12")]
            ),
            lambda: client.correct([Correction("3", rows[2], other), Correction("anna", rows[3])]),
            lambda: client.add(edges=[("anna", "20"), ("5", "30")]),
            lambda: client.request_deletion(["7", "bert"]),
            lambda: client.add([NewNode("bert", {3: 1.5}, other, rejoin=True)]),
        ]
        for number, step in enumerate(steps):
            if kill and number == 2:
                os.kill(lethe.pid_of("worker-1"), signal.SIGKILL)
            done = client.wait(step().id, timeout_s=120)
            assert (done.status, done.repair) == ("completed", "converged")
        answer = client.predict_many(["anna", "bert", *map(str, (3, 5, 12, 20, 30))])
        assert lethe.stop().status == 0
    return served.lethe.weights(), np.array([list(one.probabilities.values()) for one in answer.predictions])


def test_two_add_and_correct_what_one_does_also_if_one_of_them_is_killed(
    small_model: Path, tmp_path: Path, lethe_start: Start, new_servers: Callable[[], dict[str, str]]
) -> None:
    settings: dict[str, Any] = {"repair": "always", "repair_tolerance": 1e-9, "repair_budget": 600}
    found = []
    for count in (1, 2):
        served = Served(
            lethe_start, small_model, tmp_path / f"home-{count}", workers=count, **new_servers(), **settings
        )
        found.append(changed(served, kill=count == 2))
    assert "workers.lost" in served.lethe.log()
    (weights_of_one, predicted_by_one), (weights, predicted) = found
    assert np.linalg.norm(weights - weights_of_one) <= 1e-9 * np.linalg.norm(weights_of_one)
    assert predicted == pytest.approx(predicted_by_one, abs=1e-9)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_missed_and_taken_in_again(
    small_model: Path, tmp_path: Path, lethe_start: Start
) -> None:
    served = Served(lethe_start, small_model, tmp_path / "home", workers=2, repair="never", lease_ttl_s=2)
    with served.lethe.start() as lethe:
        os.kill(lethe.pid_of("worker-1"), signal.SIGKILL)
        assert lethe.delete(["0"]).status == "completed"
        until_together(lethe, 2, of=2)
        assert lethe.delete(["1"]).status == "completed"
        assert lethe.stop().status == 0


@pytest.mark.slow
def test_a_worker_that_is_stopped_is_missed_and_taken_in_once_it_goes_on(
    small_model: Path, tmp_path: Path, lethe_start: Start
) -> None:
    served = Served(lethe_start, small_model, tmp_path / "home", workers=2, repair="never", lease_ttl_s=1)
    with served.lethe.start() as lethe:
        worker = psutil.Process(lethe.pid_of("worker-1"))
        worker.suspend()
        until_together(lethe, 1, of=2)
        with lethe.http() as http:
            assert http.get("/readyz").status_code == 200
        assert lethe.delete(["0"]).status == "completed"
        worker.resume()
        until_together(lethe, 2, of=2)
        assert lethe.delete(["1"]).status == "completed"


def test_an_unlearner_whose_workers_are_not_there_works_alone_and_says_so(
    prepared: Path, servers: dict[str, str], tmp_path: Path, lethe_start: Start
) -> None:
    def part(role: str, **settings: Any) -> LetheProcess:
        return LetheProcess(lethe_start, prepared, role=role, part=role, **settings)

    meeting: dict[str, Any] = {"workers_port": free_port(), "lease_ttl_s": 1}
    unlearner = part("unlearner", workers=2, **servers, **meeting)
    api = part("api", api_workers=1, **servers)
    with unlearner.start(), api.start():
        assert reported_workers(api) == "1 of 2 compute together"
        assert api.delete(["0"]).status == "completed"
        # A worker without a database, in its own home with a copy of the current model.
        copied(prepared / "model", tmp_path / "elsewhere" / "model")
        worker = LetheProcess(lethe_start, tmp_path / "elsewhere", role="worker", **meeting)
        with worker:
            worker.launch()
            until_together(api, 2, of=2)
            figures = httpx2.get(f"{api.url}/metrics").text
            assert 'lethe_workers{process="unlearner"} 2.0' in figures
            assert 'lethe_workers_wanted{process="unlearner"} 2.0' in figures
        assert api.delete(["1"]).status == "completed"
        until_together(api, 1, of=2)
        assert api.delete(["2"]).status == "completed"
