"""Workers that divide P multiply by it as one does, and each holds only its own rows."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from projector.graph.graph import Graph
from projector.network.propagation import Propagator
from projector.network.spec import PropagationKind
from projector.parallel.workers import Division, Workers
from tests.support.everyday import everyday
from tests.support.mathematics.teams import in_team
from tests.support.models.small_graphs import GRAPHS, with_weights

pytestmark = pytest.mark.ci

Step = Callable[[Propagator], Propagator]


def graphs() -> Iterator[Graph]:
    """Every small graph, and again with weights of edges."""
    for graph in (made() for made in GRAPHS):
        yield graph
        yield replace(graph, adjacency=with_weights(graph.adjacency))


def steps(graph: Graph) -> list[Step]:
    """Return updates, each of the graph that the previous one left: nothing, deletions, an addition."""
    edge = np.argwhere(graph.adjacency.toarray())[:1].astype(np.int64).reshape(-1, 2)
    n = graph.nodes
    return [
        lambda P: P,
        lambda P: P.without_edges(edge),
        lambda P: P.without_nodes(np.array([n - 1, n // 2])),
        lambda P: P.with_edges(3, np.array([[n, n + 1], [n + 1, n + 2]]), np.array([2.0, 0.5])),
    ]


def multiplied(workers: Workers) -> tuple[float, list[tuple[list[int], int, int]]]:
    """Return the largest difference of a product from that of an undivided P, and what the versions hold.

    That is each worker's number of stored values, those of the undivided P, and its longest row.
    """
    error, held = 0.0, []
    for graph in graphs():
        for kind in PropagationKind:
            whole = Propagator.build(graph.adjacency, kind, 0.5)
            with patch("projector.network.propagation.LEAST_ENTRIES", 0):
                divided = whole.divided(workers)
            for step in steps(graph):
                whole, divided = step(whole), step(divided)
                # Each worker has other columns, and the first has none.
                Y = torch.randn((whole.nodes, workers.rank), dtype=torch.float64)
                for one, several in ((whole.apply, divided.apply), (whole.apply_transpose, divided.apply_transpose)):
                    found = several(Y)
                    if workers.rank:
                        error = max(error, float((one(Y) - found).abs().max()))
                own = [0] * workers.count
                own[workers.rank] = divided._matrix.values().shape[0]
                longest = int(np.diff(whole.edges.adjacency.indptr).max()) + 1
                held.append((workers.sum(torch.tensor(own)).tolist(), whole.entries, longest))
    errors = workers.joined(torch.tensor([error]), Division((1,) * workers.count))
    return float(errors.max()), held


@pytest.mark.parametrize("count", everyday([2, 4], 2))
def test_workers_hold_their_rows_and_multiply_as_one_does(count: int, tmp_path: Path) -> None:
    error, held = in_team(count, tmp_path, multiplied)
    assert error <= 1e-14
    assert [sum(own) for own, *_ in held] == [entries for _, entries, _ in held]
    # Before additions, which go to the last.
    for own, entries, longest in held[:: len(steps(GRAPHS[0]()))]:
        assert max(own) <= entries / count + 2 * longest
