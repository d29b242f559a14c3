"""Lethe started, stopped, killed and started again on servers of its own, and started on a damaged model."""

import asyncio
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from lethe_client.results import Accepted
from tests.support.models.recomputation import Recomputation
from tests.support.models.trained_models import SMALL, Models
from tests.support.preloaded import ROOT, Start, fresh
from tests.support.processes.lethe_process import LetheProcess, copied
from tests.support.service.homes import digests, facts, private_database
from tests.support.service.repair_world import Served, retrained


@pytest.fixture
def own(tmp_path: Path, lethe_start: Start) -> Iterator[Callable[..., LetheProcess]]:
    """A Lethe with private servers, not started."""
    made: list[LetheProcess] = []

    def make(**settings: Any) -> LetheProcess:
        home = tmp_path / "own"
        home.mkdir(mode=0o700)
        made.append(LetheProcess(lethe_start, home, **settings))
        return made[-1]

    yield make
    for lethe in made:
        lethe.close()


def cloned(folder: Path) -> Path:
    """What a clone holds, at `folder`, set up as the launcher sets it up but with this environment's packages."""
    unversioned = shutil.ignore_patterns(".*", "var", "data", "__pycache__")
    shutil.copytree(ROOT, folder, ignore=unversioned)
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    served = ("requirements.txt", "requirements-downloads.txt")
    (folder / ".venv" / "installed").write_text("".join((folder / name).read_text() for name in served))
    return folder


@pytest.mark.slow
def test_a_fresh_clone_serves_cora_after_one_command_and_a_second_start_serves_the_same_model(tmp_path: Path) -> None:
    clone = cloned(tmp_path / "clone")
    lethe = LetheProcess(fresh(str(clone / "lethe")), clone / "var", admin_key="", repair="")
    with lethe:
        lethe.start()
        assert "There is no model yet. Training on" in lethe.log()
        key_file = lethe.home / "run" / "admin.key"
        assert str(key_file) in lethe.printed
        assert f"{lethe.url}/docs" in lethe.printed
        with lethe.client(key_file.read_text().strip()) as client:
            trained = client.model()
            assert (trained.name, trained.nodes, trained.edges) == ("cora", 2708, 5278)
            assert client.wait(client.request_deletion(["7"]).id).audit is not None
            model, prediction = client.model(), client.predict("8")
        stored = digests(lethe.model)
        ended = lethe.stop()
        assert (ended.status, "[error" in ended.stderr) == (0, False), ended.stderr

        lethe.start()
        assert "Training" not in lethe.log()
        assert "API key" not in lethe.printed
        with lethe.client(key_file.read_text().strip()) as client:
            assert (client.model(), client.predict("8")) == (model, prediction)
            assert client.predict_many(["7"]).deleted == ["7"]
        assert digests(lethe.model) == stored
        assert lethe.stop().status == 0


class Stream:
    """Deletions posted one after the other, each until it is answered, to a Lethe that is killed now and then."""

    def __init__(self, lethe: LetheProcess, nodes: list[str]) -> None:
        self.lethe = lethe
        self.nodes = nodes
        self.accepted: dict[str, Accepted] = {}

    def post(self, until: int) -> None:
        """Post the nodes before `until` that no answer came for; a repetition has the same idempotency key."""
        with self.lethe.client() as client:
            for node in self.nodes[:until]:
                if node not in self.accepted:
                    self.accepted[node] = client.request_deletion([node], idempotency_key=f"node-{node}")

    def post_unanswered(self, node: str) -> None:
        """Send a request and go away before its answer."""
        with self.lethe.http() as http, pytest.raises(httpx2.ReadTimeout):
            http.post(
                "/deletions",
                json={"kind": "node", "nodes": [node]},
                headers={"Idempotency-Key": f"node-{node}"},
                timeout=httpx2.Timeout(30.0, read=1e-6),
            )


def interrupted(lethe: LetheProcess, nodes: list[str], moments: list[int]) -> Stream:
    """Posts `nodes`, with an end after so many: in turn a kill with the servers, a kill alone, and SIGTERM."""
    stream = Stream(lethe.start(), nodes)
    for number, moment in enumerate(moments):
        stream.post(moment)
        stream.post_unanswered(nodes[moment])
        if number % 3 == 2:
            assert lethe.stop().status == 0
        else:
            lethe.kill(with_servers=number % 3 == 0)
        lethe.start()
    stream.post(len(nodes))
    return stream


def killed_during_a_stream(lethe: LetheProcess, scratch: Recomputation, moments: list[int], seed: int) -> None:
    """Nothing is lost by ends in the middle."""
    nodes = random.Random(seed).sample(scratch.graph.node_ids, moments[-1] + 20)
    stream = interrupted(lethe, nodes, moments)
    with lethe.client() as client:
        deletions = [client.wait(one.id) for one in stream.accepted.values()]
    for deletion in deletions:
        assert deletion.audit is not None
        assert deletion.audit.span_residual is not None
        assert deletion.audit.span_residual <= 1e-8
        assert deletion.audit.rank_before - deletion.audit.rank_after == deletion.audit.directions_removed
    found = asyncio.run(facts(private_database(lethe)))
    count = len(nodes)
    assert found["requests"] == [("completed", count, count)]
    assert found["events"] == [("applied", count, count), ("completed", count, count)]
    assert found["batches"] == [(count, count, 0)]
    assert found["steps"] == [(version, version + 1) for version in range(len(found["steps"]))]
    assert found["secrets"] == [(0, 0)]
    answer = lethe.predict(scratch.graph.node_ids)
    assert set(answer.deleted) == set(nodes)
    scratch.assert_predictions(answer, nodes)
    assert len(list((lethe.model / "versions").iterdir())) == 1


@pytest.mark.slow
def test_a_lethe_killed_during_a_stream_of_deletions_completes_each_exactly_once(
    own: Callable[..., LetheProcess], models: Models
) -> None:
    # A short lease: whoever takes over after a kill waits for its end.
    lethe = own(lease_ttl_s=1)
    copied(models.trained(SMALL), lethe.model)
    killed_during_a_stream(lethe, models.recomputation(SMALL), [15, 40], seed=0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_lethe_killed_again_and_again_completes_each_deletion_exactly_once(
    own: Callable[..., LetheProcess], models: Models, seed: int
) -> None:
    lethe = own(lease_ttl_s=1)
    copied(models.trained(SMALL), lethe.model)
    moments = sorted(random.Random(seed).sample(range(1, 160), 8))
    killed_during_a_stream(lethe, models.recomputation(SMALL), moments, seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("budget", "seed"), [(0.0, 4), (0.05, 5), (5.0, 6)])
def test_a_lethe_killed_again_and_again_ends_in_the_weights_of_retraining(
    own: Callable[..., LetheProcess], models: Models, budget: float, seed: int
) -> None:
    trained = models.trained(SMALL)
    lethe = own(lease_ttl_s=1, repair="always", repair_budget=budget)
    copied(trained, lethe.model)
    moments = sorted(random.Random(seed).sample(range(1, 100), 6))
    nodes = random.Random(seed).sample(models.graph(SMALL).node_ids, moments[-1] + 20)
    stream = interrupted(lethe, nodes, moments)
    with lethe.client() as client:
        for one in stream.accepted.values():
            client.wait(one.id)
        while client.model().repair == "pending":
            lethe.assert_runs()
        deletions = [client.deletion(one.id) for one in stream.accepted.values()]
        assert client.model().guarantee == "retrained"
    for deletion in deletions:
        assert (deletion.status, deletion.guarantee, deletion.repair) == ("completed", "retrained", "converged")
        assert deletion.audit is not None
        assert deletion.audit.distance_bound_after_relative is not None
        assert deletion.audit.distance_bound_after_relative <= 1e-8
        assert deletion.audit.span_residual is not None
        assert deletion.audit.span_residual <= 1e-8
    found = asyncio.run(facts(private_database(lethe)))
    count = len(nodes)
    assert found["events"] == [("applied", count, count), ("completed", count, count), ("repaired", count, count)]
    assert found["requests"] == [("completed", count, count)]
    assert lethe.stop().status == 0
    assert Served(lethe.model).distance(retrained(trained, nodes=nodes)) <= 1e-6
    assert Served(lethe.model).is_tidy()


def refused_by_name(lethe: LetheProcess, file: Path) -> None:
    """It ends with status 1 at its first attempt, names the file and what to do, and changes nothing."""
    before = digests(lethe.model)
    lethe.launch()
    ended = lethe.ended()
    assert ended.status == 1, ended.stderr
    assert f"error: {file}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "unlearner.failed" not in ended.stderr
    assert "Lethe is ready" not in ended.stdout
    assert digests(lethe.model) == before


def damage(file: Path) -> None:
    """Change one bit in the middle of a file, or add a byte to an empty one."""
    content = bytearray(file.read_bytes() or b"\1")
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.fixture
def unstarted(tmp_path: Path, lethe_start: Start, models: Models, database_url: str, redis_url: str) -> LetheProcess:
    """A Lethe on a copy of the small model and the session's servers."""
    lethe = LetheProcess(lethe_start, tmp_path / "home", database_url=database_url, redis_url=redis_url)
    lethe.home.mkdir()
    copied(models.trained(SMALL), lethe.model)
    return lethe


def test_a_damaged_model_is_refused_by_the_name_of_the_file(unstarted: LetheProcess) -> None:
    (file,) = unstarted.model.glob("base/features.values*")
    damage(file)
    refused_by_name(unstarted, file)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_file_of_a_model_is_refused_by_name_when_it_is_damaged_cut_or_missing(
    unstarted: LetheProcess,
) -> None:
    files = sorted(path for path in unstarted.model.rglob("*") if path.is_file())
    assert len(files) > 10
    for file in files:
        whole = file.read_bytes()
        damage(file)
        refused_by_name(unstarted, file)
        if whole:
            file.write_bytes(whole[: len(whole) // 2])
            refused_by_name(unstarted, file)
        file.unlink()
        # Which index is the one that is missing cannot be known.
        refused_by_name(unstarted, file.with_name("index") if file.name.startswith("index-") else file)
        file.write_bytes(whole)
    unstarted.start()
    unstarted.close()
