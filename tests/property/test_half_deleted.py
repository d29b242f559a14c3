"""Half of a real graph deleted in random batches: factors and predictions stay what recomputation finds."""

from pathlib import Path

import numpy as np
import pytest

from model_store.datasets.load import load_dataset
from projector.forgetting.gram import factorise
from projector.network.blocks import by_block
from tests.unit.unlearning.stored import SMALL, Oracle, StoredModel, built


def delete_half(path: Path, source: str, data_dir: Path | None) -> StoredModel:
    """Deletes half of the nodes in batches of 1 to 64 in random order, and compares at every tenth batch."""
    model = built(load_dataset(source, data_dirs=[data_dir] if data_dir else []))
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
    gram = resident.state.features.gram
    fresh = factorise(resident.features.rows, oracle.live, sigma_ref_squared=gram.sigma_ref_squared)
    assert gram.rank == fresh.rank
    assert float((gram.M_pinv - fresh.M_pinv).norm()) <= 1e-8 * float(fresh.M_pinv.norm())
    # The weights must lie in the fresh span; the projection that put them there is checked against the SVD elsewhere.
    W = resident.state.features.W
    assert float((W - fresh.M @ (fresh.M_pinv @ W)).norm()) <= 1e-8 * float(W.norm())
    oracle.W = by_block(W, resident.state.classes).numpy()
    predicted = resident.predictions().probabilities[oracle.live]
    assert np.abs(predicted - oracle.probabilities()).max() <= 1e-9


def test_half_of_a_small_graph(tmp_path: Path) -> None:
    delete_half(tmp_path / "model", SMALL, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_half_of_a_real_graph(name: str, tmp_path: Path, data_dir: Path | None) -> None:
    # Without the real file, a graph of Cora's size stands in.
    known = data_dir is not None and (data_dir / f"{name}.npz").is_file()
    delete_half(tmp_path / "model", name if known else "synthetic:n=2708,d=1433,classes=7,seed=0", data_dir)
