"""`lethe model import`: replace the served model."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from model_store.errors import NoModel
from model_store.work import Work
from projector.forgetting.status import RepairStatus
from service.cli.console import Json, interrupted, note, print_result, show_progress
from service.cli.database import opened
from service.cli.serve import require_new_home
from service.cli.server import Home, read_facts, settings_of
from service.errors import ConfigurationError
from service.settings import Settings

if TYPE_CHECKING:
    from uuid import UUID

    from model_store.manifest import Manifest
    from model_store.store import Store
    from service.domain.versions import ModelImport, Version


_UNTOUCHED = "Nothing was changed. Run the same command again; it also removes the incomplete copy."
#: Seconds between checks of an import's progress.
_LOOK_S = 0.2


def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the model, as written by `lethe train`.")],
    home: Home = Path("var"),
    exclude_deleted: Annotated[
        bool,
        typer.Option(
            "--exclude-deleted", help="Delete from the new model everything that was deleted from the served one."
        ),
    ] = False,
    without_added: Annotated[
        bool,
        typer.Option("--without-added", help="Accept that nodes added to the served model are missing."),
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Weights trained elsewhere for the dataset and settings of DIR: an array W (blocks, features, "
            "classes) in a .safetensors or .npz file. Training continues from them to the optimum.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify all digests of a model folder and serve a copy of it.

    Replaces the served model without a failed prediction, or at the next start if Lethe is stopped. A model
    that contains deleted nodes is refused.

    Examples:

    [bold]./lethe model import models/cora[/bold]

    [bold]./lethe model import models/cora-new --exclude-deleted[/bold]
    """
    from model_store.replacement import check_store, finish_move

    settings = settings_of(home)
    if not folder.is_dir():
        raise NoModel(f"{folder} is not a folder.", "Give a folder written by `lethe train --out`.")
    work = Work()
    with interrupted(lambda: _UNTOUCHED), show_progress(f"Looking at {folder}", work):
        manifest = check_store(folder, work).manifest
    provide = _provider(folder, weights, work)
    if not settings.model_dir.exists() and read_facts(home) is None:
        finish_move(settings.model_dir)
    if settings.model_dir.exists():
        if settings.model_dir.resolve() == folder.resolve():
            raise ConfigurationError(f"{folder} is the served model.", "Give the folder of another model.")
        said = {"exclude_deleted": exclude_deleted, "without_added": without_added}
        _replace(settings, manifest, provide, work, said, as_json=as_json)
    else:
        require_new_home(settings, str(folder))
        with interrupted(lambda: _UNTOUCHED):
            _place(settings, provide, work)
        _print(manifest, None, f"`./lethe serve` serves it from {settings.model_dir}.", as_json)


def _provider(folder: Path, weights: Path | None, work: Work) -> "Callable[[Path], Store]":
    """Return a function that writes the model to serve into a folder, reporting its steps to `work`."""
    from model_store.store import Store
    from model_store.untrusted_folder import copy_model

    if weights is None:
        return partial(copy_model, folder, work=work)

    from model_store.pretrained_files import read_weights
    from model_store.rebuild import with_weights

    pretrained = read_weights(weights)

    def train_on(target: Path) -> Store:
        work.begin("Training from the given weights")
        store = with_weights(folder, pretrained, target)
        for warning in store.manifest.warnings:
            note(warning)
        return store

    return train_on


def _place(settings: Settings, provide: "Callable[[Path], Store]", work: Work) -> None:
    """Place the first model; it gets its name only when it is complete and on disk."""
    from uuid import uuid4

    from model_store.replacement import Replacement, copying_lock

    with show_progress("Copying the model", work), copying_lock(settings.model_dir):
        replacement = Replacement(settings.model_dir, str(uuid4()))
        replacement.stage(provide, work)
        replacement.install()


def _replace(
    settings: Settings,
    manifest: "Manifest",
    provide: "Callable[[Path], Store]",
    work: Work,
    said: Mapping[str, bool],
    *,
    as_json: bool,
) -> None:
    """Request the import and, if a service runs, wait for its result."""
    from service.processes.private_servers import open_servers

    running = read_facts(settings.home) is not None
    ended = None
    with open_servers(settings) as reached:
        with interrupted(lambda: _UNTOUCHED):
            import_id = asyncio.run(_asked(reached, provide, work, said))
        if running:
            left = "The import continues by itself; `GET /model` shows the version once it is served."
            with (
                interrupted(lambda: left),
                show_progress("The service loads and repairs the model, then switches to it", work),
            ):
                ended = asyncio.run(_ended(reached, import_id, work))
    if ended is None:
        later = "the service is not running. Its next start will import the model before any deletion."
        _print(manifest, None, later, as_json)
        return
    version = ended.version
    if version is None:
        from service.unlearner.staged import ImportRefused

        raise ImportRefused(str(ended.refusal), "The previous model stays in service.")
    excluded = f", {version.deleted_nodes} of them deleted" if version.deleted_nodes else ""
    repaired = {RepairStatus.CONVERGED: " Repaired.", RepairStatus.NOT_CONVERGED: " Its repair did not converge."}
    _print(
        manifest,
        version,
        f"served as version {version.number}{excluded}.{repaired.get(version.repair, '')} The previous model is "
        "erased.",
        as_json,
    )


async def _asked(
    settings: Settings, provide: "Callable[[Path], Store]", work: Work, said: Mapping[str, bool]
) -> "UUID":
    """Request the import; `said` are the operator's options about what was deleted and added."""
    from model_store.store import Store
    from service.processes.key_folder import open_keyring
    from service.processes.prepare import migrate_own
    from service.unlearner.importer import request_import

    assert settings.database_url is not None
    await migrate_own(settings, Store.open(settings.model_dir))
    async with opened(settings.database_url) as engine:
        keyring = await open_keyring(engine, settings)
        with show_progress("Copying the model", work):
            return await request_import(
                engine,
                keyring,
                settings.model_dir,
                exclude_deleted=said["exclude_deleted"],
                without_added=said["without_added"],
                provide=provide,
                work=work,
            )


async def _ended(settings: Settings, import_id: "UUID", work: Work) -> "ModelImport | None":
    """Return the finished import, or None if the service stops first; `work` relays the service's progress."""
    from service.db import lease
    from service.db.transactions import transaction
    from service.unlearner.causes import ImportRepository

    assert settings.database_url is not None
    async with opened(settings.database_url) as engine:
        while True:
            async with transaction(engine) as connection:
                found = await ImportRepository(connection).get(import_id)
                holder = None if found is None else await lease.holder(connection, found.model)
            if holder is not None and holder.is_held and holder.report.condition.reason is not None:
                work.relay(holder.report.condition.reason)
            if found is not None and found.finished_at is not None:
                return found
            if read_facts(settings.home) is None:
                return None
            await asyncio.sleep(_LOOK_S)


def _print(manifest: "Manifest", version: "Version | None", what: str, as_json: bool) -> None:
    """Print the imported model, with its version if a service has taken it over."""
    document = {
        "model": manifest.name,
        "nodes": manifest.nodes,
        "edges": manifest.edges,
        "features": manifest.features,
        "classes": manifest.classes,
        "version": None if version is None else version.number,
        "deleted_nodes": None if version is None else version.deleted_nodes,
        "repair": None if version is None else version.repair,
    }
    text = (
        f"{manifest.name}: {manifest.nodes} nodes, {manifest.edges} edges, {manifest.features} features, "
        f"{len(manifest.classes)} classes; {what}"
    )
    print_result(document, as_json, text)
