"""Units of the paper's experiments: what they measure, and that none is measured twice."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.catalogue import METHODS, build
from benchmarks.paper.units import Unit, closeness, injection, main
from model_store.datasets.load import load_dataset
from projector import ModelSpec
from projector.network.spec import LossKind

TINY = "synthetic:n=60,d=12,classes=3,seed=1"
SPEC = ModelSpec(loss=LossKind.OVR, regularization=1e-2)
LINEAR = [name for name in METHODS if not any(each in name for each in ("eraser", "gcn", "sage", "gat", "appnp"))]
#: Option 2 as printed is among them, wrong as its other rows are: the channel's row of M_remain is zero. So is a Newton
#: step without noise: the other rows have nothing of the channel, and along it F is lambda/2 |w|^2, which it solves.
NOTHING_LEFT = {
    "retraining",
    "lethe, projection",
    "lethe, projection and repair",
    "projector, option 1 as printed",
    "projector, option 2 as printed",
    "influence+, authors' code",
}


@pytest.mark.parametrize("method", [*LINEAR, "graph eraser, linear, metis, mean"])
def test_an_injected_channel_is_left_by_methods_with_noise_alone(method: str) -> None:
    graph = load_dataset(TINY, data_dirs=[])
    found = injection(graph, Unit("injection", TINY, method, 0), SPEC, 0.1)
    before, after = found["channel_norm_before"], found["channel_norm_after"]
    assert before is not None
    assert after is not None
    assert before > 1e-2
    if method in NOTHING_LEFT or "eraser" in method:
        assert after < 1e-10
    elif method != "projector, official code":
        # Influence of the deleted alone leaves it for its neighbours' rows as well.
        assert after > 1e-6


def test_retraining_and_repair_are_where_retraining_is_and_the_projection_is_not() -> None:
    graph = load_dataset(TINY, data_dirs=[])
    away: dict[str, dict[str, Any]] = {
        method: closeness(graph, Unit("closeness", TINY, method, 0), SPEC, 0.1)
        for method in ("retraining", "lethe, projection and repair", "lethe, projection")
    }
    for figure in ("weights", "deleted", "remaining", "test"):
        assert away["retraining"][figure] == 0
        assert away["lethe, projection and repair"][figure] < 1e-8
        assert away["lethe, projection"][figure] > 1e-4


def test_every_method_can_be_built_at_another_lambda() -> None:
    for method in METHODS:
        made = build(method, SPEC, 3, 0.5)
        assert getattr(made, "spec", getattr(getattr(made, "trainer", None), "spec", None)) in (
            None,
            ModelSpec(loss=LossKind.OVR, regularization=0.5),
        )


def test_a_unit_is_one_file_with_what_it_takes_to_repeat_it_and_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["units", "injection", "--dataset", TINY, "--method", "retraining", "--seeds", "2", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    main()
    first, second = sorted(tmp_path.iterdir())
    found = json.loads(first.read_text())
    assert found["method"] == "retraining"
    assert set(found["by_share"]) == {"0.05", "0.1"}
    assert np.isfinite(found["by_share"]["0.1"]["accuracy_after"])
    assert {"commit", "versions", "device", "date", "spec"} <= set(found)
    second.unlink()
    first.write_text("{}")
    main()
    assert first.read_text() == "{}"
    assert json.loads(second.read_text())["seed"] == 1
