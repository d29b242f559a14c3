"""A citation graph for tests on real input."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_datasets import arrays

from model_store.build import BuiltModel, build_model
from model_store.datasets.load import load_dataset
from projector.graph.graph import Graph
from projector.network.spec import ModelSpec
from projector.training.fit import Trained, train


@pytest.fixture(scope="session")
def cora() -> Graph:
    return load_dataset("cora", data_dirs=[])


@pytest.fixture(scope="session")
def trained_cora(cora: Graph) -> Trained:
    """The default specification, trained on `cora`."""
    return train(ModelSpec(), cora)


@pytest.fixture(scope="session")
def built_cora(cora: Graph) -> BuiltModel:
    """The default specification, built from `cora`."""
    return build_model(cora, ModelSpec(), name="cora", dataset="cora", split="full")


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Saves a small dataset as `graph.npz`, with the given arrays changed or, for None, left out."""

    def saved(**changes: Any) -> Path:
        np.savez(tmp_path / "graph.npz", **arrays(**changes))
        return tmp_path / "graph.npz"

    return saved


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the platter: what is durable is up to `FailingDisk`."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
