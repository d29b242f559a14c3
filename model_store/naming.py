"""The name of a model, readable without importing torch."""

from dataclasses import dataclass
from pathlib import Path

from model_store.disk.checksummed import read_checksummed

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class _Named:
    name: str


def name_of(folder: Path) -> str:
    """Return the name of the model in a folder. Raises StoreDamaged and NotAStore."""
    return read_checksummed(folder / MANIFEST, _Named, whole=False).name
