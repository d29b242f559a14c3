"""What a model is called, for who needs nothing else of it: reading more takes torch."""

from dataclasses import dataclass
from pathlib import Path

from model_store.disk.checksummed import read_checksummed

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class _Named:
    name: str


def name_of(folder: Path) -> str:
    """The name of the model in a folder. Raises StoreDamaged and NotAStore."""
    return read_checksummed(folder / MANIFEST, _Named, whole=False).name
