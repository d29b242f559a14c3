"""Two and four workers forget and learn the same as one: records equal, weights within their bounds."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray

from projector import Model, ModelSpec, fit
from projector.graph.graph import Graph
from projector.network.spec import ClassWeight, Combine, LossKind
from projector.parallel.distributed import Distributed
from projector.parallel.workers import ALONE, Workers
from tests.support.everyday import everyday
from tests.support.mathematics.teams import in_team, shared
from tests.support.models.small_graphs import graph_of, with_weights

SPECS = {
    "softmax": ModelSpec(combine=Combine.CONCAT),
    "ovr": ModelSpec(loss=LossKind.OVR, combine=Combine.CONCAT, label_hops=2),
    "squared": ModelSpec(loss=LossKind.SQUARED, hops=1, regularization=1e-3, class_weight=ClassWeight.BALANCED),
    "squared, fewer rows than columns": ModelSpec(
        loss=LossKind.SQUARED, combine=Combine.CONCAT, hops=5, regularization=1e-3
    ),
}
#: Those of which the graph has weights.
WEIGHTED = ("ovr", "squared")
#: Least stored values of P from which workers divide it: always, or never here.
DIVIDED, WHOLE = 0, 1 << 23
#: A specification, and whether products use H itself.
CASES = [(spec, dense) for spec in SPECS for dense in (False, True)]
#: Products with H itself and without, and training anew by Newton's method and by a factorisation.
FEW = [("ovr", True), ("squared", False)]
TEAMS = [(2, FEW, WHOLE), (2, FEW, DIVIDED), (2, CASES, DIVIDED), (4, CASES, DIVIDED)]


def made_up(nodes: int = 61, *, weighted: bool = False) -> Graph:
    """Return a graph with seven classes and features, some unique to a node and two alike."""
    random = np.random.default_rng(0)
    edges = {
        (int(min(pair)), int(max(pair))) for pair in random.integers(nodes, size=(3 * nodes, 2)) if pair[0] != pair[1]
    }
    features = random.random((nodes, 12)) * (random.random((nodes, 12)) < 0.4)
    features[:, 11] = 0.0
    features[5, 11] = 1.0
    features[8] = features[9]
    graph = graph_of(sorted(edges), features, random.integers(7, size=nodes).tolist(), classes=7)
    return replace(graph, adjacency=with_weights(graph.adjacency), weighted=True) if weighted else graph


def forgotten(model: Model, *, weighted: bool) -> list[dict[str, Any]]:
    """Run two consecutive batches of nodes, an edge and features, and one in which everything possible joins."""
    found = []
    updates: list[dict[str, Any]] = [
        {"remove_nodes": [5, 9, 20], "remove_features": [11]},
        {"remove_nodes": [30], "remove_edges": [_edge(model)]},
        {
            "remove_nodes": [31],
            "remove_labels": [40],
            "add_nodes": np.random.default_rng(1).random((4, 12)),
            "add_labels": [0, 3, -1, 6],
            "add_edges": [[61, 1], [62, 61], [63, 2], [64, 8], [3, 64]],
            "add_edge_weight": [0.2, 5.0, 1.0, 30.0, 0.01] if weighted else None,
            "set_features": {11: np.ones(12), 12: np.zeros(12)},
            "set_labels": {2: 5},
        },
    ]
    for each in updates:
        model, report = model.update(**each)
        certificate = model.certificate
        assert certificate is not None
        found.append(
            {
                "weights": model.weights,
                "answers": model.predict(),
                "report": replace(report, seconds=0.0),
                "bound": certificate.bound,
            }
        )
    return found


def _edge(model: Model) -> list[int]:
    edges = model._held.live_graph.propagator.edges.adjacency.tocoo()
    there = (edges.data != 0) & model.live[edges.row] & model.live[edges.col] & (edges.row != 30) & (edges.col != 30)
    place = int(np.flatnonzero(there)[0])
    return [int(edges.row[place]), int(edges.col[place])]


def by_all(workers: Workers, cases: list[tuple[str, bool]], least_entries: int = DIVIDED) -> list[list[dict[str, Any]]]:
    """Run each case, at the first worker. P is divided if it has at least `least_entries` values."""
    found = []
    for spec, dense in cases:
        with (
            patch("projector.forgetting.live_graph.keeps_dense", lambda *_, dense=dense: dense),
            patch("projector.network.propagation.LEAST_ENTRIES", least_entries),
        ):
            model = shared(fit(made_up(weighted=spec in WEIGHTED), SPECS[spec]), workers)
        if isinstance(workers, Distributed) and workers.rank:
            workers.follow()
            continue
        found.append(forgotten(model, weighted=spec in WEIGHTED))
        if isinstance(workers, Distributed):
            workers.end()
    return found


def emptied(workers: Workers) -> tuple[NDArray[np.float64], float]:
    """Return the weights after a training node without neighbours has left, and the workers' remains of its features.

    It belongs to the second of two workers, and no other row of H changes.
    """
    edges = [(node, node + 1) for node in range(6)]
    graph = graph_of(edges, np.random.default_rng(0).random((8, 3)) + 1.0, [0, 1] * 4)
    with patch("projector.forgetting.live_graph.keeps_dense", lambda *_: True):
        model = shared(fit(graph, ModelSpec()), workers)
    rows = model._held.live_graph.inputs.features.rows
    if isinstance(workers, Distributed) and workers.rank:
        del model
        workers.follow()
    else:
        # With H available, as from the first batch on.
        model._held.training_rows.objective(1.0)
        model, _ = model.forget(nodes=[7])
        model._held.live_graph.forget(np.array([7]), np.array([], dtype=np.int64))
        if isinstance(workers, Distributed):
            workers.end()
    left = workers.sum(rows.dense_rows(np.array([7])).abs().sum())
    return model.weights if workers.rank == 0 else np.zeros(0), float(left)


def test_a_row_that_one_worker_alone_has_leaves_it(tmp_path: Path) -> None:
    one, several = emptied(ALONE), in_team(2, tmp_path, emptied)
    np.testing.assert_allclose(several[0], one[0], rtol=1e-7)
    assert one[1] == several[1] == 0.0


@pytest.mark.ci
@pytest.mark.parametrize(("count", "cases", "least_entries"), everyday(TEAMS, (2, FEW, DIVIDED)))
def test_several_forget_what_one_does(
    count: int, cases: list[tuple[str, bool]], least_entries: int, tmp_path: Path
) -> None:
    by_several = in_team(count, tmp_path, by_all, cases, least_entries)
    for case, one, several in zip(cases, by_all(ALONE, cases), by_several, strict=True):
        for expected, found in zip(one, several, strict=True):
            apart = float(np.linalg.norm(expected["weights"] - found["weights"]))
            assert apart <= expected["bound"] + found["bound"], case
            np.testing.assert_allclose(found["answers"], expected["answers"], atol=1e-7)
            assert found["report"].repair == expected["report"].repair
            assert found["report"].directions_removed == expected["report"].directions_removed
            assert found["report"].directions_gained == expected["report"].directions_gained
            assert found["report"].training_norm_before == pytest.approx(expected["report"].training_norm_before)
