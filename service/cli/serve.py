"""`lethe serve`: run the service; every setting is a flag here."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from projector.network.spec import ModelSpec
from service.cli.console import note
from service.cli.first_model import require_new_home
from service.embedded.home import Home, HomeLock
from service.errors import ConfigurationError
from service.settings import Settings, load_settings, variable_name


def command() -> Callable[..., None]:
    """The command, with one option per field of `Settings`."""

    def serve(**flags: Any) -> None:
        settings = load_settings(**flags)
        ensure_model(settings)

        from service.app import run

        run(settings)

    serve.__doc__ = """Serve deletions and predictions until stopped.

    Starts Postgres and Valkey of its own unless DATABASE_URL and REDIS_URL are set.
    Trains a model first when there is none. Every option is also an environment variable.

    Examples:

    [bold]./lethe serve[/bold]

    [bold]LETHE_DEVICE=cpu ./lethe serve --model models/cora --port 8080[/bold]
    """
    serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [_option(name) for name in Settings.model_fields], return_annotation=None
    )
    serve.__annotations__ = {name: _option(name).annotation for name in Settings.model_fields}
    return serve


def ensure_model(settings: Settings) -> None:
    """Train a model into the folder that is served when nothing is there; what is there is for the service to judge.

    Raises:
        ConfigurationError: a folder was named in which there is no model, or the model that was served is not there; or
            others are to reach a first start whose first key they could guess.
        AlreadyRunning: another process trains or serves in this LETHE_HOME.
        DatasetNotFound: the dataset cannot be found.
    """
    from model_store.replacement import finish_move
    from service.cli.train import train_and_report
    from service.first_key import refuse_weak_first_start

    folder = settings.model_dir
    if not _is_empty(folder):
        return
    home = Home(settings.home)
    home.prepare()
    # Two that start for the first time at once must not both train into one folder.
    lock = HomeLock(home)
    try:
        # A crash in the middle of an import may have left the model beside its place.
        finish_move(folder)
        if not _is_empty(folder):
            return
        if settings.model is not None:
            raise ConfigurationError(
                f"There is no model in {folder}.", f"Train one with `./lethe train --dataset cora --out {folder}`."
            )
        require_new_home(settings, "one that `./lethe train --out DIR` has written")
        refuse_weak_first_start(settings)
        note(f"There is no model yet. Training one on {settings.dataset}.")
        train_and_report(settings.dataset, folder, ModelSpec(), device=settings.device, data_dir=settings.data_dir)
    finally:
        lock.release()


def _is_empty(folder: Path) -> bool:
    """Whether a model may be written there. A damaged one, whatever it has lost, is never taken for none."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def _option(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    default = field.get_default()
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        metavar=_metavar(field.annotation),
        help=f"{field.description} \\[{variable_name(name)}]",
        show_default=False if default is None else str(default),
    )
    # Text, not the field's type: the settings check flags and variables alike, and name both in their errors.
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    kinds = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
    return next((kinds[kind] for kind in (annotation, *get_args(annotation)) if kind in kinds), "TEXT")
