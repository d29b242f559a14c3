"""A citation graph for tests on real input."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

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
def saved_data(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that saves the same dataset as a torch-geometric `Data`, `graph.pt`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch_geometric.data import Data

    def saved(**changes: Any) -> Path:
        whole = arrays(**changes)
        ids = {"node_ids": whole.pop("node_ids")} if "node_ids" in whole else {}
        tensors = {name: torch.from_numpy(array) for name, array in whole.items()}
        torch.save(Data(**tensors, **ids), tmp_path / "graph.pt")
        return tmp_path / "graph.pt"

    return saved


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip real syncs; `FailingDisk` decides what is durable."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
