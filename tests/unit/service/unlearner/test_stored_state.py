"""A model that does not fit is not loaded."""

from pathlib import Path

import pytest

from model_store import memory
from model_store.datasets.load import load_dataset
from projector.errors import DeviceError
from tests.support.models.stored import SMALL, StoredModel, built


def test_a_model_larger_than_free_memory_is_refused_when_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = StoredModel(tmp_path / "model", built(load_dataset(SMALL, data_dirs=[])))
    monkeypatch.setattr(memory, "available_bytes", lambda device: 100_000)
    with pytest.raises(DeviceError, match=r"Serving needs [\d,]+ bytes.*100,000 .*are free") as refused:
        stored.reloaded()
    assert "7 matrices of 120 x 120" in refused.value.detail
