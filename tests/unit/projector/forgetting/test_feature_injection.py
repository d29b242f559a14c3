"""The feature injection benchmark measures what its table says."""

import numpy as np
import pytest

from benchmarks.paper.feature_injection import heading, measure, report
from model_store.datasets.load import load_dataset
from projector.network.spec import Combine, ModelSpec
from tests.support.models.stored import SMALL


@pytest.mark.parametrize("combine", list(Combine))
def test_the_injected_channel_had_weight_and_has_none_after_its_nodes_are_deleted(combine: Combine) -> None:
    graph = load_dataset(SMALL, data_dirs=[])
    result = measure(graph, ModelSpec(combine=combine), 0.1, device="cpu", seed=0)
    assert result.nodes == round(0.1 * np.count_nonzero(graph.train_mask))
    assert result.directions_removed >= 1
    assert result.channel_norm_before > 0
    assert result.channel_norm_after <= 1e-9 * result.channel_norm_before
    assert result.lost_direction_norm_after <= 1e-9 * result.lost_direction_norm_before
    # Far above guessing among five classes, before and after.
    assert min(result.accuracy_before, result.accuracy_after) > 0.5


def test_every_figure_of_a_result_stands_in_the_table() -> None:
    graph, spec = load_dataset(SMALL, data_dirs=[]), ModelSpec()
    results = [measure(graph, spec, share, device="cpu", seed=1) for share in (0.05, 0.1)]
    head, rule, *rows = report(results).splitlines()
    assert len(rows) == 2
    assert {line.count("|") for line in (head, rule, *rows)} == {10}
    assert rows[0].startswith(f"| 5% | {results[0].nodes} | {results[0].channel_norm_before:.4g} |")
    assert "300 nodes" in heading("small", graph, spec, "cpu", 1)
