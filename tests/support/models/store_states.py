"""What tests store and erase, and the content of a store's folder."""

import shutil
from pathlib import Path

import numpy as np

from model_store.base.base import Base
from model_store.store import Store
from model_store.versions import SpanArrays, VersionState
from tests.support.models.store_models import SmallModel


def read_everything(path: Path) -> tuple[Base, VersionState]:
    store = Store.open(path)
    return store.load_base(), store.read_version(store.current())


def a_state(model: SmallModel, seed: int) -> VersionState:
    random = np.random.default_rng(seed)

    def span(shape: tuple[int, ...]) -> SpanArrays:
        return SpanArrays(*(random.standard_normal(shape) for _ in range(3)))

    live = random.random(model.graph.nodes) < 0.8
    return VersionState(
        features=span(model.weights.shape),
        labels=span(model.label_weights.shape),
        live=live,
        featured=live & (random.random(model.graph.nodes) < 0.9),
        rank=seed,
    )


def same_state(left: VersionState, right: VersionState) -> bool:
    parts = ("weights", "B", "T")
    spans = ((left.features, right.features), (left.labels, right.labels))
    masks = ((left.live, right.live), (left.featured, right.featured))
    pairs = [(getattr(a, part), getattr(b, part)) for a, b in spans for part in parts] + list(masks)
    return left.rank == right.rank and all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


def everything_of(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def names_in(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*"))


def copied(intact: Path, tmp_path: Path) -> Path:
    """Copy a store over the remains of the last one."""
    shutil.rmtree(tmp_path / "m", ignore_errors=True)
    shutil.copytree(intact, tmp_path / "m", copy_function=shutil.copyfile)
    return tmp_path / "m"


def rows(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


def everything_in(path: Path) -> bytes:
    """Return all bytes of all files of a store, and their names."""
    return b"\0\0".join(file.name.encode() + file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file())


def some_edges(model: SmallModel, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    stored = model.graph.adjacency.tocoo()
    return np.stack([stored.row, stored.col], axis=1)[:: stored.nnz // count][:count].astype(np.int64)
