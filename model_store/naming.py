"""What a model is called, for who needs nothing else of it: reading more takes torch."""

from pathlib import Path

from model_store.disk.checksummed import read_checksummed

MANIFEST = "manifest.json"


def name_of(folder: Path) -> str:
    """The name of the model in a folder. Raises StoreDamaged and NotAStore."""
    fields = read_checksummed(folder / MANIFEST)
    fields.check_format()
    return fields.text("name")
