"""Nodes deleted, added and corrected beside solving again: each result is checked in the run that times it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.performance.batches.updates import (
    PARTS,
    REGULARIZATION,
    WHAT,
    Measured,
    distance_between,
    measured,
    prepared,
    report_of,
    solved_again,
    spec_of,
    updated,
)
from model_store.datasets.load import load_dataset
from projector import fit
from projector.forgetting.status import TOLERANCE
from projector.network.spec import LossKind
from tests.support.models.stored import SMALL

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("loss", list(REGULARIZATION))
def test_every_update_ends_at_the_weights_solved_again(loss: LossKind) -> None:
    graph, spec = load_dataset(SMALL, data_dirs=[]), spec_of(loss, hops=2)
    model = fit(graph, spec)
    rows = [measured("small", graph, model, spec, what, nodes, nodes) for what in WHAT for nodes in (1, 2)]
    for row in rows:
        assert [len(row.seconds[part]) for part in PARTS] == [row.nodes] * len(PARTS)
        assert row.bound <= TOLERANCE
        assert row.distance <= row.bound + row.bound_again
    lines = report_of(rows).splitlines()
    assert [line.split(" | ")[2:4] for line in lines[2:8]] == [[row.what, str(row.nodes)] for row in rows]


@pytest.mark.parametrize("what", WHAT)
def test_weights_farther_from_those_solved_again_than_both_bounds_are_refused(what: str) -> None:
    graph = load_dataset(SMALL, data_dirs=[])
    model = fit(graph, spec_of(LossKind.SQUARED, hops=2))
    after, report, _ = updated(*prepared(what, model, graph, np.flatnonzero(graph.train_mask)[:3]))
    W, bound_again, _ = solved_again(after)
    assert report.bound_after is not None
    distance_between(after, report.bound_after, W, bound_again)
    apart = report.bound_after.bound + bound_again.bound
    with pytest.raises(ArithmeticError, match="from those solved again"):
        distance_between(after, report.bound_after, W + 2 * apart * torch.ones_like(W), bound_again)
    # A bound that says nothing passes no weights.
    with pytest.raises(ArithmeticError, match="from those solved again"):
        distance_between(after, report.bound_after, W, replace(bound_again, relative=None))


def test_medians_of_repetitions_are_compared_with_solving_again() -> None:
    seconds = dict(zip(PARTS, ([1.0, 2.0, 9.0], [0.0, 0.5, 1.0], [1.0, 1.0, 1.0], [0.5, 0.5, 0.5]), strict=True))
    row = Measured("arxiv", "squared", 2, "delete", 1, seconds, 10.0, 1e-9, 1e-9, 1e-10, "here", 0.3)
    cells = report_of([row]).splitlines()[2].split(" | ")
    assert cells[4:10] == ["2.5", "0.5", "4", "10", "4.0", "2.5"]
