"""Traces of deleted nodes after `completed`: none in any file below LETHE_HOME."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from model_store.build import build_model
from projector.graph.graph import Graph
from projector.network.spec import ModelSpec
from tests.support.clients.command_line import CommandLine, Ran
from tests.support.models.recomputation import Recomputation
from tests.support.models.trained_models import Models
from tests.support.preloaded import Start
from tests.support.processes.lethe_process import LetheProcess, copied
from tests.support.service.people import private_graph, traces
from tests.support.service.repair_world import without

pytestmark = pytest.mark.ci


def traced(model: Path, graph: Graph, nodes: list[str]) -> set[tuple[str, str]]:
    """Return every file of a model with a trace of one of `nodes`, and the kind of trace."""
    searched = {(what, trace) for node in nodes for what, trace in traces(graph, node).items()}
    return {
        (file.name, what)
        for file in model.rglob("*")
        if file.is_file()
        for content in [file.read_bytes()]
        for what, trace in searched
        if trace in content
    }


def named(home: Path, nodes: list[str]) -> set[tuple[str, str]]:
    """Return every file below a LETHE_HOME, including its servers', with the id of one of `nodes`, and that id."""
    found = set()
    for file in home.rglob("*"):
        # A running Postgres removes its own files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if file.is_file():
                # Most of a write-ahead log is zeros at its end.
                content = file.read_bytes().rstrip(b"\0")
                found |= {(file.name, node) for node in nodes if node.encode() in content}
    return found


@pytest.fixture
def lethe(tmp_path: Path, lethe_start: Start) -> Iterator[LetheProcess]:
    """A Lethe that trains on the private graph, with its own servers."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    people = private_graph(tmp_path / "people.npz")
    # Completed requests are repaired, however busy the machine is.
    lethe = LetheProcess(lethe_start, home, dataset=people, max_wait_ms=0, repair="always", repair_budget=300)
    with lethe as process:
        yield process


def searched_for(command_line: CommandLine, home: Path, graph: Graph, nodes: list[str]) -> Ran:
    """Run `lethe audit leftovers` on these nodes."""
    ids, features = home.parent / "searched.txt", home.parent / "searched.npy"
    ids.write_text("\n".join(nodes) + "\n")
    assert isinstance(graph.features, np.ndarray)
    np.save(features, graph.features[[graph.node_ids.index(node) for node in nodes]])
    return command_line("audit", "leftovers", "--home", home, "--ids", ids, "--features", features)


def test_nothing_of_a_completed_requests_nodes_is_in_any_file(
    lethe: LetheProcess, models: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line = CommandLine(capsys)
    lethe.start()
    graph = models.graph(str(lethe.home.parent / "people.npz"))
    scratch = Recomputation(lethe.model, graph)
    # The search finds existing data; otherwise it would prove nothing.
    assert {what for _, what in traced(lethe.model, graph, [graph.node_ids[0]])} >= {"id", "two features"}
    assert named(lethe.model, [graph.node_ids[0]])

    gone: list[str] = []
    for size in (1, 30, 5):
        batch = list(graph.node_ids[len(gone) : len(gone) + size])
        if size == 30:
            # Also predicted, requested wrongly and cancelled: none of that may leave a trace either.
            lethe.predict(batch)
            with lethe.client() as client, lethe.http() as http:
                for node in batch:
                    assert http.get(f"/predict/{node}").status_code == 200
                assert http.post("/deletions", json={"kind": "person", "nodes": batch}).status_code == 422
                assert http.post("/deletions", json={"kind": "node", "nodes": [*batch, "x"]}).status_code == 404
                # The next one depends on it, and is completed only after this one is off the disk.
                assert client.request_deletion(batch).count == size
        lethe.delete(batch)
        gone += batch
        assert traced(lethe.model, graph, gone) == set()
    assert named(lethe.home, gone) == set()
    # Served data is still there.
    live = [node for node in graph.node_ids if node not in gone]
    assert {what for _, what in traced(lethe.model, graph, live)} >= {"id", "two features"}

    with lethe.http() as http:
        statuses = {http.get(f"/predict/{node}").status_code for node in gone}
        assert statuses == {410}
        assert {http.get(f"/predict/{node}").status_code for node in live[:5]} == {200}
    answer = lethe.predict(graph.node_ids)
    assert set(answer.deleted) == set(gone)
    again = build_model(without(graph, nodes=gone), ModelSpec(), name="again", dataset="again", split="full")
    assert scratch.error(answer.predictions, scratch.probabilities(gone, again.weights[0])) <= 1e-6

    assert lethe.stop().status == 0
    assert named(lethe.home, gone) == set()
    assert all(node not in lethe.log() for node in graph.node_ids)

    # The same by the auditor's command, over every byte including the servers' data.
    searched = searched_for(command_line, lethe.home, graph, gone)
    assert (searched.status, searched.stderr.count("warning: training datasets")) == (0, 1), searched.stdout
    assert searched.stdout.startswith("0 traces in ")
    # The command finds data that is there, in a home of the model alone: the servers' files take longest to search.
    copied(lethe.model, lethe.home.parent / "elsewhere" / "model")
    still_there = searched_for(command_line, lethe.home.parent / "elsewhere", graph, live[:2])
    assert still_there.status == 1
    for trace in ("base/", ": byte ", "id on line 2", "features of row 1 as float32"):
        assert trace in still_there.stdout
    assert live[0] not in still_there.stdout
