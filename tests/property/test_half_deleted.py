"""Half of a real graph deleted in random batches: factors and predictions agree with recomputation."""

from pathlib import Path

import numpy as np
import pytest

from model_store.datasets.load import load_dataset
from model_store.datasets.synthetic import DEFAULT_SYNTHETIC
from projector.forgetting.factors import whole
from projector.forgetting.gram import factorise
from projector.graph.graph import Graph
from projector.network.blocks import by_block
from tests.support.models.stored import SMALL, Oracle, StoredModel, built, real_graph


def delete_half(path: Path, graph: Graph) -> StoredModel:
    """Delete half of the nodes in batches of 1 to 64 in random order, and compare at every tenth batch."""
    model = built(graph)
    stored, oracle = StoredModel(path, model), Oracle(model)
    rng = np.random.default_rng(8)
    order = rng.permutation(model.graph.nodes)[: model.graph.nodes // 2]
    batches = 0
    while order.size:
        batch, order = np.split(order, [min(order.size, int(rng.integers(1, 65)))])
        outcome = stored.delete(batch.tolist())
        oracle.live[batch] = False
        batches += 1
        if batches % 10 == 0 or not order.size:
            assert_exact(stored, oracle)
            assert outcome.span_residual <= 1e-8
    return stored


def assert_exact(stored: StoredModel, oracle: Oracle) -> None:
    resident = stored.resident
    gram = resident.committed.state.features.gram
    fresh = factorise(resident.committed.features.rows, oracle.live, sigma_ref_squared=gram.sigma_ref_squared)
    assert gram.rank == fresh.rank
    assert float((whole(gram.M_pinv) - whole(fresh.M_pinv)).norm()) <= 1e-8 * float(whole(fresh.M_pinv).norm())
    # The weights must lie in the fresh span; another test checks the projection against the SVD.
    W = resident.committed.state.features.W
    assert float((W - fresh.M @ (fresh.M_pinv @ W)).norm()) <= 1e-8 * float(W.norm())
    oracle.W = by_block(W, resident.committed.state.classes).numpy()
    predicted = resident.committed.predictions().probabilities[oracle.live]
    assert np.abs(predicted - oracle.probabilities()).max() <= 1e-9


def test_half_of_a_small_graph(tmp_path: Path) -> None:
    delete_half(tmp_path / "model", load_dataset(SMALL, data_dirs=[]))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["cora", "citeseer", DEFAULT_SYNTHETIC])
def test_half_of_a_large_graph(name: str, tmp_path: Path) -> None:
    delete_half(tmp_path / "model", real_graph(name))
