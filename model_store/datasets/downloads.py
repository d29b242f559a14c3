"""Download datasets through torch-geometric and store them as `.npz`."""

import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from model_store.datasets.files import write_npz
from model_store.errors import DatasetNotFound
from projector.graph.tensors import from_torch_geometric

#: Datasets that torch-geometric can fetch: our name -> its class and the name within it.
DOWNLOADABLE: Mapping[str, tuple[str, str]] = {
    "citeseer": ("Planetoid", "CiteSeer"),
    "pubmed": ("Planetoid", "PubMed"),
    "amazon_photo": ("Amazon", "Photo"),
    "coauthor_cs": ("Coauthor", "CS"),
}

#: (our name, a temporary folder for the download) -> attributes of a torch-geometric `Data`.
Fetch = Callable[[str, Path], Mapping[str, Any]]


def fetch(name: str, folder: Path) -> Mapping[str, Any]:
    """Fetch a dataset of `DOWNLOADABLE` into `folder`; network errors propagate."""
    with warnings.catch_warnings():
        # torch-geometric calls deprecated torch functions during import.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch_geometric import datasets
    kind, inner = DOWNLOADABLE[name]
    attributes: Mapping[str, Any] = getattr(datasets, kind)(str(folder), inner)[0].to_dict()
    return attributes


def download(name: str, folder: Path, fetch: Fetch = fetch) -> Path:
    """Download the dataset `name` to `folder`/`name`.npz and return the path.

    Raises DatasetNotFound with the reason if the download fails.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
            attributes = fetch(name, Path(scratch))
    except Exception as error:
        needed = "without torch-geometric " if isinstance(error, ModuleNotFoundError) else ""
        # Any failure below means that the dataset is unavailable.
        raise DatasetNotFound(
            f"The dataset {name!r} could not be downloaded {needed}({type(error).__name__}: {error}).",
            f"Put {name}.npz into {folder}, or try again where the network allows it.",
        ) from error
    path = folder / f"{name}.npz"
    write_npz(path, from_torch_geometric(attributes, name))
    return path
