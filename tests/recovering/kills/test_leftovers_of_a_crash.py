"""`lethe audit leftovers` finds what a crash in the middle of an erasure leaves, and nothing after a restart."""

import asyncio
import contextlib
import re
import secrets
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from lethe_client import ServerUnreachable
from projector.graph.graph import Graph, feature_rows
from service.failure_points import FailurePoint
from tests.support.kills.deletions import template_of
from tests.support.kills.doomed_process import DoomedLethe
from tests.support.kills.faults import FILE_CHANGE, Action, Fault
from tests.support.models.trained_models import Models
from tests.support.preloaded import Preloaded
from tests.support.processes.lethe_process import Ended
from tests.support.service.homes import private_database
from tests.support.service.people import CLASSES, NODES, private_graph
from tests.support.service.repair_world import query

#: Number of sparse features, and number of each node's.
_WIDTH, _EACH = 200, 12
_DELETED = slice(3, 11)


def sparse_graph(path: Path) -> Path:
    """Like `private_graph`, with features that are stored sparse: random values in random columns."""
    rng = np.random.default_rng(1)
    columns = np.sort(np.stack([rng.choice(_WIDTH, _EACH, replace=False) for _ in range(NODES)]), axis=1)
    values = rng.standard_normal(NODES * _EACH).astype(np.float32)
    X = sp.csr_array((values, columns.ravel(), np.arange(NODES + 1) * _EACH), shape=(NODES, _WIDTH))
    left, right = rng.integers(NODES, size=(2, 3 * NODES))
    pairs = np.unique(np.sort(np.stack([left, right])[:, left != right], axis=0), axis=1)
    np.savez(
        path,
        edge_index=np.hstack([pairs, pairs[::-1]]).astype(np.int32),
        y=rng.integers(CLASSES, size=NODES),
        x_indptr=X.indptr,
        x_indices=X.indices,
        x_data=X.data,
        x_shape=np.array(X.shape),
        node_ids=np.array([secrets.token_hex(16) for _ in range(NODES)]),
    )
    return path


def searched(lethe: DoomedLethe, graph: Graph, dataset: Path, nodes: list[str]) -> Ended:
    """Run the command on these nodes, as a separate process over every file of the home."""
    ids, features = lethe.home.with_name("searched.txt"), dataset
    ids.write_text("\n".join(nodes) + "\n")
    if isinstance(graph.features, np.ndarray):
        features = lethe.home.with_name("searched.npy")
        rows = np.array([graph.node_ids.index(node) for node in nodes])
        np.save(features, feature_rows(graph.features, rows))
    return lethe.run("audit", "leftovers", "--ids", ids, "--features", features)


def values_left(model: Path, graph: Graph, nodes: list[str]) -> float:
    """Return the share of the feature values unique to `nodes` that are in the model's files, each alone."""
    features = feature_rows(graph.features, np.arange(graph.nodes)).astype(np.float32)
    gone = np.isin(graph.node_ids, nodes)
    sought = np.setdiff1d(features[gone], features[~gone])
    stored = [np.fromfile(file, dtype=np.float32) for file in model.glob("base/features.values*")]
    return float(np.isin(sought, np.concatenate(stored)).mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "killed_at"),
    [*((private_graph, at) for at in (1, 2, 3, 4, 5, 6, 8)), *((sparse_graph, at) for at in (1, 3, 5, 8))],
)
def test_nothing_is_left_after_a_crash_in_the_middle_of_an_erasure_and_a_restart(
    preloaded: Preloaded, tmp_path: Path, make: Callable[[Path], Path], killed_at: int
) -> None:
    dataset = make(tmp_path / "people.npz")
    models = Models(tmp_path)
    graph = models.graph(str(dataset))
    home = tmp_path / "home"
    template_of(preloaded, models.trained(str(dataset)), tmp_path / "template").rename(home)
    nodes = list(graph.node_ids[_DELETED])
    faults = [
        Fault(Action.KILL_SUPERVISOR, FailurePoint.APPLIED),
        Fault(Action.KILL_IT, FILE_CHANGE, killed_at),
    ]
    lethe = DoomedLethe(preloaded, home, faults, repair="always", lease_ttl_s=1)
    try:
        # Reported applied, and killed: everything is still on the disk, and the search finds it.
        with lethe.launch_until_ready().client() as client, contextlib.suppress(ServerUnreachable):
            client.request_deletion(nodes, idempotency_key="the-same")
        lethe.ended()
        found = searched(lethe, graph, dataset, nodes)
        assert found.status == 1, found.stdout
        # The store holds single values of sparse features in random order, and the model's own reading finds the row.
        of_features = (
            "features of row 0 as float32" if isinstance(graph.features, np.ndarray) else "features of row 0 match"
        )
        for trace in ("base/", "id on line 1", of_features):
            assert trace in found.stdout
        assert nodes[0] not in found.stdout
        assert values_left(lethe.model, graph, nodes) == 1.0

        # Killed again at one of the file changes by which the next start erases it.
        with lethe.launch_until_ready().client() as client:
            accepted = client.request_deletion(nodes, idempotency_key="the-same")
            assert client.wait(accepted.id, timeout_s=60.0).status == "completed"
            assert lethe.faults == []
            assert set(client.predict_many(nodes).deleted) == set(nodes)
        assert asyncio.run(
            query(private_database(lethe), "SELECT count(*) FROM versions WHERE finished_at IS NULL")
        ) == [(0,)]
        assert lethe.stop().status == 0
        gone = searched(lethe, graph, dataset, nodes)
        assert (gone.status, gone.stdout[:12]) == (0, "0 traces in "), gone.stdout
        assert values_left(lethe.model, graph, nodes) == 0.0
        # It also searched the servers' data and the write-ahead log.
        files = re.search(r"in ([\d,]+) files of ([\d.]+) MiB", gone.stdout)
        assert files is not None
        assert int(files[1].replace(",", "")) > 900
        assert (home / "postgres" / "pg_wal").is_dir()
        live = searched(lethe, graph, dataset, [graph.node_ids[0]])
        assert live.status == 1
    finally:
        lethe.give_up()
