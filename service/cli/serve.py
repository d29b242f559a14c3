"""`lethe serve`: run the service, and train a first model if none exists. Every setting is a flag here."""

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from projector.network.spec import ModelSpec
from service.cli.console import note
from service.cli.threads import cores
from service.errors import ConfigurationError
from service.processes import serving as supervisor_children
from service.processes.private_servers.home import Home, HomeLock
from service.processes.serving import Role
from service.settings import Settings, load_settings, setting_names, variable_name


def train_first_model(settings: Settings) -> None:
    """Train a model into the served folder, unless it has one. Call it with the home's lock held.

    Raises:
        ConfigurationError: a named folder outside LETHE_HOME has no model, or the model served before is missing; or
            other machines could reach a first start whose first key is guessable.
        DatasetNotFound: the dataset cannot be found.
    """
    from model_store.replacement import finish_move
    from service.access.api_keys import refuse_weak_first_start
    from service.cli.training import TrainingOptions, train_and_report

    folder = settings.model_dir
    # A crash during an import may have left the model beside its place.
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
    """Return whether a model may be written to `folder`. A damaged model, however incomplete, counts as one."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def require_new_home(settings: Settings, found: str) -> None:
    """Raise ConfigurationError if a model served before is missing: a first model would ignore its tombstones.

    `found` names a possible replacement, as in "copy …".
    """
    from service.processes.key_folder import SLOTS

    if (settings.home / "keys" / SLOTS).exists():
        raise ConfigurationError(
            f"{settings.home} served a model before, but {settings.model_dir} contains none: it is in another "
            "folder, or lost.",
            f"Set LETHE_MODEL to the other folder. If the model is lost, copy {found} to {settings.model_dir} and run "
            "`./lethe recover`, which repeats all deletions. It must have the name of the lost model.",
        )


_ROLE = inspect.Parameter(
    "role",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Role | None,
        typer.Option(
            "--role",
            help="Run only this part. `prepare` exits when it is done; the others run until stopped. Private servers "
            "run while any part uses them.",
        ),
    ],
)


_REPLACE = inspect.Parameter(
    "replace",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Take over from the Lethe that answers at this address for this LETHE_HOME, without a gap: on its "
            "socket, once this one is ready. If none answers, start as usual.",
        ),
    ],
)


def command() -> Callable[..., None]:
    """Return the command, with one option per field of `Settings`."""

    def serve(role: Role | None = None, replace: bool = False, **flags: Any) -> None:
        role, flags = as_torchrun_says(role, flags, os.environ)
        settings = load_settings(**flags)
        if role in (None, "prepare"):
            ensure_model(settings, supervisor_children.train)
        api_workers = settings.api_workers or supervisor_children.default_workers(cores())
        supervisor_children.serve(settings, api_workers, role, replace=replace)

    serve.__doc__ = """Serve deletions and predictions until stopped.

    Starts a private Postgres and Valkey unless DATABASE_URL and REDIS_URL are set.
    Trains a model first if none exists. Every option is also an environment variable.

    Examples:

    [bold]./lethe serve[/bold]

    [bold]LETHE_DEVICE=cpu ./lethe serve --model models/cora --port 8080[/bold]
    """
    options = [_ROLE, _REPLACE, *(_option(name) for name in setting_names())]
    serve.__signature__ = inspect.Signature(options, return_annotation=None)  # type: ignore[attr-defined]
    serve.__annotations__ = {option.name: option.annotation for option in options}
    return serve


def as_torchrun_says(
    role: Role | None, flags: dict[str, Any], environment: Mapping[str, str]
) -> tuple[Role | None, dict[str, Any]]:
    """Return role and flags for a process started by torchrun: all but the first are workers.

    torchrun provides their number and the first one's address, unless flags override them; elsewhere nothing changes.
    """
    if "TORCHELASTIC_RUN_ID" not in environment:
        return role, flags
    from_torchrun = {"workers": environment["WORLD_SIZE"], "workers_address": environment["MASTER_ADDR"]}
    given = {name: value for name, value in flags.items() if value is not None}
    if environment["RANK"] != "0":
        return "worker", from_torchrun | given
    # The workers are already started, so the first process starts none.
    return role or "unlearner", from_torchrun | given


def ensure_model(settings: Settings, train: Callable[[Settings], None] = train_first_model) -> None:
    """Train a model if the served folder is empty. If it is not, the service checks its content.

    Raises as `train_first_model`, and AlreadyRunning when another process trains or serves in this LETHE_HOME.
    """
    if not is_empty(settings.model_dir):
        return
    home = Home(settings.home)
    home.prepare()
    # Two concurrent first starts must not both train into one folder.
    lock = HomeLock(home)
    try:
        train(settings)
    finally:
        lock.release()


def setting_option(name: str) -> Any:
    """Return the option for a field of `Settings`; its parameter is text or None and goes to `load_settings`."""
    field = Settings.model_fields[name]
    default = field.get_default()
    return typer.Option(
        f"--{name.replace('_', '-')}",
        metavar=_metavar(field.annotation),
        help=f"{field.description} \\[{variable_name(name)}]",
        show_default=False if default is None else str(default),
    )


def _option(name: str) -> inspect.Parameter:
    # Use text instead of the field's type: the settings check flags and variables alike, and name both in errors.
    annotation = Annotated[str | None, setting_option(name)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    kinds = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
    return next((kinds[kind] for kind in (annotation, *get_args(annotation)) if kind in kinds), "TEXT")
