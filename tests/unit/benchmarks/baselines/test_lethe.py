"""Lethe, alone and with adaptive diffusion, compared with retraining."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.baselines.lethe import Lethe, RetrainedWithDiffusion
from benchmarks.baselines.linear import remaining
from benchmarks.baselines.retraining import Retraining
from projector import ModelSpec, fit
from tests.support.mathematics.baselines import OVR, small_graph

pytestmark = pytest.mark.ci

SPEC = replace(OVR, diffusion=True)
NODES = np.array([1, 7])


@pytest.mark.parametrize("spec", [OVR, SPEC], ids=["alone", "with diffusion"])
def test_without_a_lost_direction_the_weights_stay_and_are_not_those_of_retraining(spec: ModelSpec) -> None:
    graph = small_graph()
    before = Lethe(spec, repair=False).fit(graph)
    after = before.unlearn(NODES)
    assert after.report is not None
    assert after.report.directions_removed == 0
    np.testing.assert_array_equal(after.weights, before.weights)
    retraining = RetrainedWithDiffusion(spec) if spec.diffusion else Retraining(spec)
    assert not np.allclose(after.weights, retraining.fit(graph).unlearn(NODES).weights, atol=1e-3)


def test_retraining_with_diffusion_is_the_librarys_on_what_remains() -> None:
    graph = small_graph()
    before = RetrainedWithDiffusion(SPEC).fit(graph)
    after = before.unlearn(NODES)
    np.testing.assert_array_equal(after.weights, fit(remaining(graph, NODES), SPEC).weights)
    assert not after.predict()[NODES].any()
    assert before.predict()[NODES].any()
    assert not after.unlearn(np.array([0])).predict()[[0, 1, 7]].any()
