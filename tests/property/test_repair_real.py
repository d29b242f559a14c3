"""Repair on real graphs against weights trained from zero by another solver on the remaining graph."""

import math
from pathlib import Path

import numpy as np
import pytest

from projector.forgetting.batch import Removal
from projector.forgetting.optimum import stacked
from projector.forgetting.status import RepairStatus
from projector.network.spec import ModelSpec
from service.domain.states import RepairPolicy
from tests.support.mathematics.retraining import Problem
from tests.support.models.stored import StoredModel, built, real_graph

#: One batch of each size, then 50 in a row.
SIZES = (1, 16, 64, 256, *(1, 2, 4, 8, 16) * 10)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("regularization", [1e-4, 1e-6])
@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed", "amazon_photo"])
def test_a_real_graph_is_as_if_retrained(name: str, regularization: float, tmp_path: Path) -> None:
    graph = real_graph(name)
    stored = StoredModel(
        tmp_path / "model", built(graph, ModelSpec(regularization=regularization)), RepairPolicy.ALWAYS
    )
    rng = np.random.default_rng(6)
    checked = {0, 1, 2, 3, len(SIZES) - 1}
    for number, size in enumerate(SIZES):
        resident = stored.resident
        if resident.prefactor_due and size == 1:
            # Most batches of a run come before the Hessian was factorised, some after.
            resident.preconditioner_cache.advance(math.inf)
        nodes = rng.choice(np.flatnonzero(resident.committed.state.live), size=size, replace=False)
        outcome = stored.remove(Removal(nodes=nodes))
        certificate, lost = resident.committed.certificate, outcome.prepared.projection.lost_direction_norm_after
        assert outcome.prepared.outcome.status is RepairStatus.CONVERGED
        assert outcome.span_residual <= 1e-8
        assert certificate is not None
        assert certificate.relative is not None
        assert certificate.relative <= 1e-8
        W = stacked(resident.committed.state).numpy()
        if lost is not None:
            assert lost <= 1e-9 * np.linalg.norm(W)
        if number not in checked:
            continue
        live = resident.committed.live_graph
        H = live.objective(1.0).representation.dense().numpy()
        labels = graph.labels[live.training_rows]
        problem = Problem(H, labels, graph.num_classes, stored.model.manifest.spec.loss, regularization)
        best = problem.minimum(1e-9)
        distance = float(np.linalg.norm(W - best))
        assert distance <= 1e-6 * np.linalg.norm(best)
        assert distance <= certificate.bound + problem.distance_bound(best)
        predicted = resident.committed.predictions().probabilities[live.propagator.live]
        split = live.objective(1.0).representation
        logits = split.all_logits(resident.committed.state.features.W.new_tensor(best)).numpy()
        exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
        retrained = (exponents / exponents.sum(axis=1, keepdims=True))[live.propagator.live]
        assert np.abs(predicted - retrained).max() <= 1e-6
