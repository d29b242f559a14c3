"""Deleting ordinary nodes over HTTP: what the record says of them, checked against the surviving rows."""

from collections.abc import Callable

import numpy as np
import pytest

from lethe_client.results import Audit, Deletion
from tests.support.everyday import everyday
from tests.support.models.recomputation import Recomputation
from tests.support.models.trained_models import SMALL, Models, training_nodes
from tests.support.processes.lethe_process import LetheProcess

#: Nodes in one batch of the servers below; they wait for a batch to fill, so that batches are what a test says.
BATCH = 20
#: With words that one node alone carries, and fewer words than nodes.
SPARSE = "synthetic:n=800,d=700,classes=4,seed=3"


def completed(lethe: LetheProcess, requests: list[list[str]]) -> list[tuple[Deletion, Audit]]:
    """All requests posted before the first is waited for."""
    with lethe.client() as client:
        accepted = [client.request_deletion(nodes) for nodes in requests]
        deletions = [client.wait(one.id) for one in accepted]
    audits = [deletion.audit for deletion in deletions if deletion.audit is not None]
    return list(zip(deletions, audits, strict=True))


def assert_said_in_words(deletion: Deletion, audit: Audit) -> None:
    assert deletion.explanation is not None
    if audit.directions_removed == 0:
        assert deletion.explanation.startswith("The projection changed nothing")
        assert audit.weights_sha256_after == audit.weights_sha256_before
        assert audit.weight_change == 0
        assert audit.lost_direction_norm_before is None
    else:
        assert "The projection removed" in deletion.explanation
        assert audit.weights_sha256_after != audit.weights_sha256_before
        assert audit.lost_direction_norm_before is not None
        assert audit.lost_direction_norm_after is not None
        assert audit.lost_direction_norm_after <= 1e-9 * audit.lost_direction_norm_before
    assert (deletion.guarantee, deletion.repair) == ("span", "none")


def node_alone_with_a_feature(scratch: Recomputation) -> str:
    """A node that carries a feature which no other node has."""
    carriers = np.asarray((scratch.X != 0).sum(axis=0)).ravel()
    lonely = scratch.X[:, np.flatnonzero(carriers == 1)]
    return scratch.graph.node_ids[np.flatnonzero(np.asarray((lonely != 0).sum(axis=1)).ravel())[0]]


@pytest.mark.parametrize("dataset", everyday([SPARSE, "cora"], SPARSE))
def test_every_training_nodes_request_is_measured_and_every_batch_loses_the_directions_it_should(
    models: Models, serve: Callable[..., LetheProcess], dataset: str
) -> None:
    scratch = models.recomputation(dataset)
    lethe = serve(models.trained(dataset), max_batch_nodes=BATCH, max_wait_ms=60_000)
    alone = node_alone_with_a_feature(scratch)
    order = [node for node in training_nodes(scratch.graph, 1.0, seed=1) if node != alone]
    single = [[node] for node in order[: 2 * BATCH]]
    together = [*order[2 * BATCH : 3 * BATCH - 1], alone]

    gone: list[str] = []
    for request in (*zip(*[iter(single)] * BATCH, strict=True), (together,)):
        results = completed(lethe, list(request))
        gone += [node for nodes in request for node in nodes]
        assert {audit.batch.nodes for _, audit in results} == {BATCH}
        assert len({audit.batch.id for _, audit in results}) == 1
        for deletion, audit in results:
            assert audit.injected_norm_before is not None
            assert audit.injected_norm_before > 0
            assert audit.injected_norm_after == 0
            assert audit.channel_norm_before is None
            assert audit.span_residual is not None
            assert audit.span_residual <= 1e-8
            assert audit.directions_removed == audit.rank_before - audit.rank_after
            assert_said_in_words(deletion, audit)
        assert audit.rank_after == scratch.rank_without(gone)
    assert audit.directions_removed >= 1
    scratch.assert_predictions(lethe.predict(scratch.graph.node_ids), gone)


def test_a_batch_larger_than_the_span_is_recorded_like_any_other(
    models: Models, serve: Callable[..., LetheProcess]
) -> None:
    scratch = models.recomputation(SMALL)
    lethe = serve(models.trained(SMALL))
    nodes = scratch.graph.node_ids[: int(0.9 * scratch.graph.nodes)]
    assert len(nodes) > scratch.rank

    ((deletion, audit),) = completed(lethe, [list(nodes)])

    assert audit.rank_after == scratch.rank_without(nodes) < audit.rank_before == scratch.rank
    assert audit.span_residual is not None
    assert audit.span_residual <= 1e-8
    assert_said_in_words(deletion, audit)
    scratch.assert_predictions(lethe.predict(scratch.graph.node_ids), nodes)
