"""A small dataset as arrays, to be saved intact or damaged."""

from pathlib import Path
from typing import Any

import numpy as np

from model_store.datasets.load import load_dataset
from projector.graph.graph import Graph


def arrays(**changes: Any) -> dict[str, Any]:
    """Return a valid dataset of 6 nodes with a public split; a change to None leaves an array out."""
    labels = np.array([0, 1, 2, 0, -1, 1])
    whole: dict[str, Any] = {
        "edge_index": np.array([[0, 1, 1, 2, 4, 5], [1, 0, 2, 1, 5, 4]], dtype=np.int32),
        "x": np.arange(12, dtype=np.float32).reshape(6, 2),
        "y": labels,
        "train_mask": np.array([True, False, False, False, False, False]),
        "val_mask": np.array([False, True, False, False, False, False]),
        "test_mask": np.array([False, False, True, False, False, False]),
        **changes,
    }
    return {name: array for name, array in whole.items() if array is not None}


#: Changes that leave the split out.
NO_SPLIT = {"train_mask": None, "val_mask": None, "test_mask": None}


def load(path: Path, **options: Any) -> Graph:
    """Load the dataset in a file."""
    return load_dataset(str(path), data_dirs=[], **options)
