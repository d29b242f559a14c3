"""`lethe model import`: take over a model that was trained elsewhere."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.console import stdout
from service.cli.server import Home
from service.errors import ConfigurationError, Conflict

if TYPE_CHECKING:
    from model_store.manifest import Manifest


class ModelPresent(Conflict):
    """A model is already where one would be imported to."""


def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the model, as `lethe train` wrote it.")],
    home: Home = Path("var"),
) -> None:
    """Check a model folder, every digest of it, and copy it to where `lethe serve` looks.

    Example: [bold]./lethe model import models/cora[/bold]
    """
    target = home / "model"
    if target.exists():
        raise ModelPresent(
            f"There is a model in {target} already.",
            "To serve another one beside it, give that a LETHE_HOME of its own (and another --port).",
        )
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a folder.", "Give the folder that `lethe train --out` wrote.")
    _checked(folder)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The copy is what will be served: it is checked too, and gets its name only when it is whole and on disk.
    copy = target.with_name(f".model.import-{os.getpid()}")
    try:
        shutil.copytree(folder, copy)
        manifest = _checked(copy)
        for path in [*copy.rglob("*"), copy]:
            _sync(path)
        copy.rename(target)
        _sync(home)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    stdout().print(
        f"{manifest.name}: {manifest.nodes} nodes, {manifest.edges} edges, {manifest.features} features, "
        f"{len(manifest.classes)} classes; `./lethe serve` serves it from {target}.",
        markup=False,
    )


def _checked(folder: Path) -> "Manifest":
    """The manifest of the model in `folder`, every array of which has been read and matches its digest."""
    from model_store.store import Store

    store = Store.open(folder)
    store.load_base()
    store.read_version(store.current())
    return store.manifest


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
