"""The first model of a LETHE_HOME: where it may be placed, and how it is trained when there is none."""

from pathlib import Path

from projector.network.spec import ModelSpec
from service.cli.console import note
from service.errors import ConfigurationError
from service.settings import Settings


def train_first_model(settings: Settings) -> None:
    """Train a model into the folder that is served, unless one is there; to be called with the home's lock held.

    Raises:
        ConfigurationError: a folder outside of LETHE_HOME was named in which there is no model, or the model that was
            served is not there; or others are to reach a first start whose first key they could guess.
        DatasetNotFound: the dataset cannot be found.
    """
    from model_store.replacement import finish_move
    from service.access.first_key import refuse_weak_first_start
    from service.cli.models.train import TrainingOptions, train_and_report

    folder = settings.model_dir
    # A crash in the middle of an import may have left the model beside its place.
    finish_move(folder)
    if not is_empty(folder):
        return
    if settings.model is not None and not folder.resolve().is_relative_to(settings.home.resolve()):
        raise ConfigurationError(
            f"There is no model in {folder}.", f"Train one with `./lethe train --dataset cora --out {folder}`."
        )
    require_new_home(settings, "a folder written by `./lethe train --out DIR`")
    refuse_weak_first_start(settings)
    note(f"There is no model yet. Training on {settings.dataset}.")
    options = TrainingOptions(device=settings.device)
    train_and_report(settings.dataset, folder, ModelSpec(), options, data_dir=settings.data_dir)


def is_empty(folder: Path) -> bool:
    """Whether a model may be written there. A damaged one, whatever it has lost, is never taken for none."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def require_new_home(settings: Settings, found: str) -> None:
    """Raises ConfigurationError where a model has been served that is not there: a first one meets no tombstone.

    `found` names the model that can take its place, as in "copy …".
    """
    from service.operation.key_folder import SLOTS

    if (settings.home / "keys" / SLOTS).exists():
        raise ConfigurationError(
            f"{settings.home} served a model before, but {settings.model_dir} contains none: it is in another "
            "folder, or lost.",
            f"Set LETHE_MODEL to the other folder. If the model is lost, copy {found} to {settings.model_dir} and run "
            "`./lethe recover`, which repeats all deletions. It must have the name of the lost model.",
        )
