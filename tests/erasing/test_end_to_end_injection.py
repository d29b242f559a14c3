"""The paper's feature injection test, over HTTP on a Lethe process."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.models.trained_models import Models, training_nodes
from tests.support.processes.lethe_process import LetheProcess, figures_of


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.05, 0.10])
def test_a_feature_that_only_the_deleted_nodes_had_leaves_the_weights(
    share: float, models: Models, serve: Callable[..., LetheProcess]
) -> None:
    channel = training_nodes(models.graph("cora"), share, seed=0)
    model = models.trained("cora", channel)
    scratch = models.recomputation("cora", channel)
    test_nodes = scratch.nodes(scratch.graph.test_mask)
    lethe = serve(model)
    before = scratch.accuracy(lethe.predict(test_nodes))
    assert before == pytest.approx(figures_of(model)["accuracy"]["test"])
    W_before = lethe.weights()

    deletion = lethe.delete(channel)

    audit = deletion.audit
    assert audit is not None
    assert audit.batch.nodes == len(channel)
    assert audit.channel_norm_before is not None
    assert audit.channel_norm_before > 0
    assert audit.injected_norm_before == pytest.approx(audit.channel_norm_before, rel=1e-9)
    assert audit.channel_norm_after is not None
    assert audit.channel_norm_after <= 1e-9 * audit.channel_norm_before
    assert audit.lost_direction_norm_before is not None
    assert audit.lost_direction_norm_before >= 0.99 * audit.channel_norm_before
    assert audit.lost_direction_norm_after is not None
    assert audit.lost_direction_norm_after <= 1e-9 * audit.lost_direction_norm_before
    assert audit.injected_norm_after == 0
    assert audit.span_residual is not None
    assert audit.span_residual <= 1e-8
    assert audit.directions_removed == audit.rank_before - audit.rank_after
    assert deletion.explanation is not None
    assert "removed" in deletion.explanation

    projected = scratch.projected(channel)
    W_after = lethe.weights()[0]
    weight_error = np.linalg.norm(W_after - projected) / np.linalg.norm(projected)
    assert weight_error <= 1e-9
    # The projection changed something, so the comparison above could have failed.
    assert np.linalg.norm(W_after - W_before[0]) > 1e-3 * np.linalg.norm(W_before[0])

    answer = lethe.predict(test_nodes)
    after = scratch.accuracy(answer)
    assert scratch.error(answer.predictions, scratch.probabilities(channel, projected)) <= 1e-9
    # Without the channel the model still predicts the test nodes' classes.
    assert after >= before - 0.05
    print(f"{share:.0%}: accuracy {before:.4f}, then {after:.4f}; weights off by {weight_error:.1e}; {audit}")
