"""Progress of long work: a share and an estimate if the amount is known, else the time of the current step."""

from pathlib import Path

import numpy as np
import pytest

from model_store.base.erasure import Erasure
from model_store.manifest import FeatureLayout
from model_store.untrusted_folder import copy_model
from model_store.work import Work
from tests.support.models.store_models import small_model


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_is_known_beforehand_gets_a_share_and_an_estimate() -> None:
    clock = Clock()
    work = Work(clock)
    assert (work.what, work.share, work.pace, work.status) == ("", None, "", None)
    work.begin("Copying", 1000)
    work.count(100)
    assert (work.share, work.status) == (0.1, None), "nothing is said of what may end in a moment"
    clock.now += 25
    work.count(150)
    assert work.status == "Copying: 25 % done, about 80 s left"
    clock.now += 35
    assert work.status == "Copying: 25 % done, about 3 min left"
    work.count(750)
    assert work.status == "Copying: 99 % done, a few seconds left", "it is done when the next step begins"
    work.begin("Checking", 10)
    assert work.share is None
    assert work.status is None
    clock.now += 30
    work.end()
    assert work.status is None


def test_what_is_not_known_beforehand_gets_no_estimate() -> None:
    clock = Clock()
    work = Work(clock)
    work.begin("Waiting for the disk")
    clock.now += 40
    assert work.share is None
    assert work.status == "Waiting for the disk, for about 40 s"
    work.begin("Reading", 10)
    clock.now += 3
    work.count(20)
    assert work.status == "Reading, for a few seconds", "more than was foreseen is no 100 %"
    work.relay("Elsewhere: 10 % done, about 2 h left")
    assert work.status == "Elsewhere: 10 % done, about 2 h left"


@pytest.mark.parametrize("layout", [FeatureLayout.DENSE, FeatureLayout.CSR])
def test_reading_and_copying_a_model_count_just_what_they_announced(tmp_path: Path, layout: FeatureLayout) -> None:
    store = small_model(layout=layout).create(tmp_path / "model")
    store.erase(Erasure(nodes=np.array([3, 7])), fencing=1)
    reading, copying = Work(), Work()
    store.load_base(reading)
    copy_model(store.path, tmp_path / "copy", work=copying)
    for work in (reading, copying):
        assert work._step is not None
        assert 1.0 <= work._step.done / work._step.amount < 1.05
