"""`lethe model list | show | export`: the models of a LETHE_HOME, read from its database and its model folder."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from service.cli.console import Json, note, print_result, table, written
from service.cli.database import with_database
from service.cli.server import Home, Model, connect, read_facts, settings_of
from service.domain.formats import number
from service.domain.states import Guarantee
from service.errors import ConfigurationError

if TYPE_CHECKING:
    from model_store.store import Store
    from service.db.engine import Connection
    from service.domain.versions import Version

#: Parts of a model's folder whose sizes are shown, by name.
_PARTS = ("base", "versions")
_REVEALS = (
    "The file has the exact weights. They reveal more about each training node than rounded predictions do, and no "
    "deletion reaches the file: export again after deletions, and destroy older files."
)


def list_(home: Home = Path("var"), as_json: Json = False) -> None:
    """List the models of this LETHE_HOME and its database: version, live nodes, loss and guarantee.

    Example: [bold]./lethe model list[/bold]
    """
    versions = with_database(home, lambda connection, _: _versions(connection))
    # After the transaction, which must be short.
    folder = settings_of(home).model_dir
    store = _store_of(folder) if folder.exists() else None
    names = dict.fromkeys([*versions, *([] if store is None else [store.manifest.name])])
    found = [_described(name, *versions.get(name, (0, None)), store) for name in names]
    rows = [
        (one["model"], str(one["version"]), str(one["live_nodes"] or "–"), one["loss"] or "–", one["guarantee"])
        for one in found
    ]
    head = ("model", "version", "live nodes", "loss", "guarantee")
    print_result({"models": found}, as_json, table(f"Models in {home}", head, rows))


async def _versions(connection: "Connection") -> "dict[str, tuple[int, Version | None]]":
    """Return the committed version of each model in the database, and its record; version 0 as trained has none."""
    from service.predictions.version_rows import PointerRepository, VersionRepository

    found = {}
    for pointer in await PointerRepository(connection).all():
        latest = await VersionRepository(connection).latest(pointer.model, limit=1)
        found[pointer.model] = (pointer.version, next(iter(latest), None))
    return found


def _described(name: str, number: int, version: "Version | None", served: "Store | None") -> dict[str, Any]:
    store = served if served is not None and served.manifest.name == name else None
    live = None if version is None else version.live_nodes
    if live is None and store is not None:
        live = int(store.read_version(store.current()).live.sum())
    return {
        "model": name,
        "version": number,
        "live_nodes": live,
        "loss": None if store is None else store.manifest.spec.loss.value,
        "guarantee": _guarantee(version),
        "folder": None if store is None else str(store.path),
    }


def _guarantee(version: "Version | None") -> str:
    from projector.forgetting.status import RepairStatus

    retrained = version is not None and version.repair is RepairStatus.CONVERGED
    return (Guarantee.RETRAINED if retrained else Guarantee.SPAN).value


def show(home: Home = Path("var"), model: Model = None, as_json: Json = False) -> None:
    """Show the served model: its settings, frozen parts, figures and the size of its folder.

    While Lethe runs, the figures are those of `GET /model`. Otherwise they are those of the last version in the
    database.

    Example: [bold]./lethe model show[/bold]
    """
    settings = settings_of(home, model)
    store = _store_of(settings.model_dir)
    if read_facts(home) is None:
        versions = with_database(home, lambda connection, _: _versions(connection))
        figures = _figures(store, versions.get(store.manifest.name, (0, None))[1])
    else:
        with connect(None, None, home) as client:
            figures = msgspec.to_builtins(client.model())
    manifest = store.manifest
    sizes = {part: _bytes(store.path / part) for part in _PARTS} | {"all": _bytes(store.path)}
    document = {
        "folder": str(store.path),
        "dataset": manifest.dataset,
        "split": manifest.split,
        "trained_at": manifest.created_at.isoformat(),
        "settings": asdict(manifest.spec),
        "encoder": manifest.encoder,
        **figures,
        "frozen_parts": list(manifest.frozen_parts),
        "warnings": list(manifest.warnings),
        "bytes": sizes,
    }
    rows = [(name, _cell(value)) for name, value in document.items() if name not in ("settings", "frozen_parts")]
    rows += [(f"setting {name}", _cell(value)) for name, value in document["settings"].items()]
    rows += [("frozen part", part) for part in manifest.frozen_parts]
    print_result(document, as_json, table(f"{manifest.name} in {store.path}", ("", ""), rows))


def _figures(store: "Store", version: "Version | None") -> dict[str, Any]:
    """Return the figures of `GET /model` that are known while Lethe is stopped."""
    from service.unlearner.new_version import model_facts

    state = store.read_version(store.current())
    noisy = state.publication is not None
    return asdict(model_facts(store.manifest, store.nodes, weighted=store.weighted)) | {
        "version": store.current().version,
        "live_nodes": int(state.live.sum()),
        "edges": store.live_edges(store.current()),
        "rank": state.rank,
        "span_residual": None if version is None or noisy else version.span_residual,
        "distance_bound": None if version is None or noisy else version.distance_bound_after,
        "distance_bound_relative": None if version is None or noisy else version.distance_bound_after_relative,
        "repair": "none" if version is None else version.repair.value,
        "guarantee": _guarantee(version),
        "weights_sha256": store.weights_sha256(store.current()),
        "is_published_with_noise": noisy,
    }


def export(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="New .npz file for weights, class names and settings.")],
    home: Home = Path("var"),
    model: Model = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Confirm that the exact weights may leave this machine.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the weights of the current version to a file that `projector.load_exported` predicts with.

    It reads the model's folder, not the service, so no API key allows it. A model that is published with noise is
    refused: its exact weights would undo the promise.

    Example: [bold]./lethe model export cora.npz --exact[/bold]
    """
    from model_store.export import export_weights

    settings = settings_of(home, model)
    store = _store_of(settings.model_dir)
    if out.suffix != ".npz":
        raise ConfigurationError(f"{out} does not end in .npz.", "Give a file that does.")
    if not exact:
        raise ConfigurationError(_REVEALS, "Add --exact to write it.")
    try:
        with written(out) as file:
            version = export_weights(store, file)
    except FileExistsError:
        raise ConfigurationError(f"{out} exists.", "Give a new file, or remove this one first.") from None
    note(_REVEALS)
    document = {"model": store.manifest.name, "version": version, "file": str(out)}
    print_result(document, as_json, f"{store.manifest.name}, version {version}: weights written to {out}.")


def _store_of(folder: Path) -> "Store":
    from model_store.store import Store

    return Store.open(folder)


def _bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value)) or "–"
    return "–" if value is None else str(value)
