"""The model that replaces another one in tests of imports, and the folders that imports leave beside it."""

from pathlib import Path

from model_store.build import build_model
from projector.network.spec import ModelSpec
from tests.support.kills.deletions import People
from tests.support.processes.lethe_process import figures_of


def another_model(people: People, folder: Path) -> Path:
    """Train a model of the same graph with another lambda, in `folder`."""
    if not folder.exists():
        name = str(figures_of(people.template / "model")["name"])
        spec = ModelSpec(regularization=1e-2)
        build_model(people.graph, spec, name=name, dataset="another", split="full").write(folder)
    return folder


def beside(home: Path) -> list[str]:
    """Return the folders that imports have left beside the model."""
    return [path.name for path in home.iterdir() if path.name.startswith(".model.") and path.is_dir()]
