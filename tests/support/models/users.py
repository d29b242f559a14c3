"""Two tables of users, with columns of every kind: those of docs/data.md."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

#: What the columns mean.
COLUMNS: Mapping[str, Any] = {"id": "user_id", "source": "follower", "target": "followed", "label": "segment"}
_SEGMENTS, _COUNTRIES = ("loyal", "new", "lost"), ("DE", "FR", "PL", "AT")


def users(count: int = 120, seed: int = 0) -> tuple[pa.Table, pa.Table]:
    """Return users, of whom a fifth have no segment and no set, and whom they follow, in one direction each."""
    rng = np.random.default_rng(seed)
    segments = rng.integers(0, 3, count)
    known = rng.random(count) < 0.8
    ids = [f"u-{row}" for row in range(count)]
    sets = rng.choice(["train", "validation", "test"], count, p=[0.6, 0.2, 0.2])
    nodes = {
        "user_id": ids,
        "age": pa.array(rng.integers(18, 90, count) / 2),
        "country": pa.array(
            [_COUNTRIES[(row + segment) % 4] for row, segment in enumerate(segments)]
        ).dictionary_encode(),
        "premium": pa.array(segments == 0),
        "embedding": pa.FixedSizeListArray.from_arrays(
            pa.array((rng.normal(size=(count, 4)) + segments[:, None]).ravel().astype(np.float32)), 4
        ),
        "segment": pa.array([_SEGMENTS[segment] for segment in segments], mask=~known),
        "split": pa.array(list(sets), mask=~known),
    }
    first, second = np.triu_indices(count, 1)
    follow = rng.random(first.size) < np.where(segments[first] == segments[second], 0.08, 0.02)
    ends = [[ids[row] for row in side[follow]] for side in (first, second)]
    return pa.table(nodes), pa.table(dict(zip(("follower", "followed"), ends, strict=True)))
