"""A citation graph for tests on real input."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.models.citations import cora
from tests.support.models.small_datasets import arrays

__all__ = ["cora"]


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that saves a small dataset as `graph.npz`, with arrays changed or, for None, left out."""

    def saved(**changes: Any) -> Path:
        np.savez(tmp_path / "graph.npz", **arrays(**changes))
        return tmp_path / "graph.npz"

    return saved


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip real syncs; `FailingDisk` decides what is durable."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
