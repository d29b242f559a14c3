"""Load datasets by name or path, or generate them, as graphs to train on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from model_store.datasets.benchmark_files import read_any_npz
from model_store.datasets.downloads import DOWNLOADABLE, download
from model_store.datasets.files import read_npz, read_torch_geometric
from model_store.datasets.ogb import looks_like_ogb, read_ogb
from model_store.datasets.planetoid import datasets_in, read_planetoid
from model_store.datasets.synthetic import PREFIX, generate, parse
from model_store.errors import DatasetNotFound
from projector.errors import GraphError
from projector.graph.graph import Graph, validate
from projector.graph.raw_graph import Masks, RawGraph

Split = Literal["full", "public"]

#: The datasets that ship with Lethe: `cora.npz`, with source and licence in `cora.txt`.
_SHIPPED = Path(__file__).parent
_SHIPPED_NAMES = ("cora",)
#: Shares of training and validation nodes if a dataset has no split.
_TRAIN_SHARE, _VAL_SHARE = 0.6, 0.2
_READERS: Mapping[str, Callable[[Path], RawGraph]] = {
    ".npz": read_any_npz,
    ".pt": read_torch_geometric,
    ".pth": read_torch_geometric,
}


def default_data_dirs(env: Mapping[str, str]) -> list[Path]:
    """Return the search path for dataset names: LETHE_DATA_DIR, ./data, ~/.cache/lethe."""
    given = [Path(env["LETHE_DATA_DIR"])] if env.get("LETHE_DATA_DIR") else []
    return [*given, Path("data"), Path(env.get("HOME") or Path.home()) / ".cache" / "lethe"]


def load_dataset(
    source: str,
    *,
    split: Split = "full",
    data_dirs: Sequence[Path],
    seed: int = 0,
    dedupe: bool = False,
    undirected: bool = False,
    split_index: int | None = None,
    download: Callable[[str, Path], Path] | None = download,
    report: Callable[[str], None] = lambda note: None,
) -> Graph:
    """Return the graph named `source`, checked by `validate`.

    `source` is a name, searched as `NAME.npz` in `data_dirs` and then among the datasets that ship with Lethe (`cora`),
    a path to an `.npz`, a saved torch-geometric `Data` (`.pt`) or a folder of Planetoid or OGB, or
    `synthetic:n=…,d=…,classes=…,seed=…`. A known name that is not found is downloaded into the last of `data_dirs`,
    unless `download` is None. `report` receives what was left out of a benchmark's file.

    With `split` "full", every labelled node outside validation and test is a training node, as in the paper; "public"
    is the dataset's own split. `split_index` chooses among several, by default the first. Without any, "full" draws
    60/20/20 with `seed`. With `dedupe` a repeated edge counts once; otherwise such a graph is refused. So is one with
    an edge in one direction only, unless `undirected` adds the other.

    Raises DatasetNotFound listing the searched places, or GraphError describing the problem with the data.
    """
    raw = _with_chosen_split(_read(source, data_dirs, download), split_index)
    for note in raw.notes:
        report(f"{raw.origin}: {note}")
    graph = with_split(raw.in_both_directions() if undirected else raw, split, seed, dedupe=dedupe)
    validate(graph)
    return graph


def is_own(source: str) -> bool:
    """Return whether `source` is user data: not synthetic, shipped or downloaded by Lethe."""
    return not source.startswith(PREFIX) and source.lower() not in {*DOWNLOADABLE, *_SHIPPED_NAMES}


def _read(source: str, data_dirs: Sequence[Path], download: Callable[[str, Path], Path] | None) -> RawGraph:
    if source.startswith(PREFIX):
        return generate(parse(source))
    path = Path(source)
    if (raw := _in_folder(path, source)) is not None:
        return raw
    if path.suffix.lower() in _READERS:
        return _READERS[path.suffix.lower()](path)
    name = source.lower()
    # The user's files take precedence over shipped ones.
    looked = list(dict.fromkeys(folder / f"{name}.npz" for folder in (*data_dirs, _SHIPPED)))
    for candidate in looked:
        if path.name == source and candidate.is_file():
            return read_npz(candidate)
    if path.suffix or path.name != source or path.is_file():
        raise DatasetNotFound(
            f"{source} is neither the name of a dataset, a file ending in {', '.join(_READERS)}, nor a folder of "
            "Planetoid or OGB.",
            "Save the graph as an .npz of arrays, or give two tables with --nodes and --edges; see docs/data.md.",
        )
    places = ", ".join(str(candidate) for candidate in looked)
    remedy = (
        "Set LETHE_DATA_DIR to the folder of the .npz, give the path of an .npz or .pt file, "
        f"or use cora, which ships with Lethe, or {PREFIX}n=…,d=…,classes=…,seed=…."
    )
    if name not in DOWNLOADABLE or download is None or not data_dirs:
        raise DatasetNotFound(f"There is no dataset {source!r}; looked for {places}.", remedy)
    try:
        return read_npz(download(name, data_dirs[-1]))
    except DatasetNotFound as error:
        raise DatasetNotFound(f"{error.detail} Looked for {places}.", remedy) from error


def with_split(raw: RawGraph, split: Split, seed: int, *, dedupe: bool) -> Graph:
    """Return the graph of `raw` with the training set of `split`, as in `load_dataset`, unchecked."""
    if raw.masks is None:
        if split == "public":
            raise GraphError(f"{raw.origin} has no public split.", "Use --split full.")
        masks = _drawn_masks(raw, seed)
    elif split == "public":
        masks = raw.masks
    else:
        masks = replace(raw.masks, train=(raw.labels >= 0) & ~raw.masks.val & ~raw.masks.test)
    return raw.graph(masks, dedupe=dedupe)


def _in_folder(path: Path, source: str) -> RawGraph | None:
    """Return the dataset of a benchmark's folder; None if `source` is another kind of name."""
    if path.name.startswith("ind.") and (path.parent / f"{path.name}.x").is_file():
        return read_planetoid(path.parent, path.name.removeprefix("ind."))
    # A folder beside a dataset's name needs a slash.
    if not path.is_dir() or (path.name == source and path.suffix == ""):
        return None
    if looks_like_ogb(path):
        return read_ogb(path)
    names = datasets_in(path)
    if len(names) > 1:
        raise DatasetNotFound(
            f"{path} has several datasets of Planetoid: {', '.join(names)}.", f"Name one, as {path}/ind.{names[0]}."
        )
    return read_planetoid(path, names[0]) if names else None


def _with_chosen_split(raw: RawGraph, index: int | None) -> RawGraph:
    if index is None:
        return raw
    if not 0 <= index < len(raw.splits):
        found = f"splits 0 to {len(raw.splits) - 1}" if raw.splits else "at most one split"
        raise GraphError(f"{raw.origin} has {found}.", "Choose one of them, or leave out --split-index.")
    return replace(raw, masks=raw.splits[index])


def _drawn_masks(raw: RawGraph, seed: int) -> Masks:
    """Draw 60/20/20 of the labelled nodes. The first share is rounded up to guarantee a training node."""
    labelled = np.flatnonzero(raw.labels >= 0)
    order = np.random.default_rng(seed).permutation(labelled)
    train = int(np.ceil(_TRAIN_SHARE * order.size))
    val = train + int(np.floor(_VAL_SHARE * order.size))
    parts = (order[:train], order[train:val], order[val:])
    drawn = [np.zeros(raw.nodes, dtype=np.bool_) for _ in parts]
    for mask, part in zip(drawn, parts, strict=True):
        mask[part] = True
    return Masks(*drawn)
