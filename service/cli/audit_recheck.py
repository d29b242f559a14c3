"""`lethe audit recheck`: measure the recorded figures of the served model again, from the files on disk."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from model_store.work import Work
from service.cli.console import ExitStatus, Json, interrupted, print_result, report, show_progress, table
from service.cli.database import opened
from service.cli.server import Home, Model, settings_of_used
from service.domain.formats import number
from service.domain.records import Pointer
from service.errors import StateMismatch
from service.settings import Settings

if TYPE_CHECKING:
    from service.log.leaves import ServedFigures
    from service.unlearner.measurement import Measured

#: Rounding differs between machines. Two values count as equal within this factor, or if the new one is below this
#: bound.
_ROUNDING = 1e-9
_SAME_WITHIN = 10.0


@dataclass(frozen=True)
class Line:
    """One figure as recorded and as measured now, and whether the two agree."""

    name: str
    recorded: str | float | None
    measured: str | float | None
    #: None without a recorded value.
    is_same: bool | None


def recheck(
    model: Model = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Measure rank, span residual and distance bound of the served weights again, from the files on disk.

    Uses DATABASE_URL, or the private Postgres of LETHE_HOME; Lethe may be running. Exits with 1 when files and
    record disagree.

    Example: [bold]./lethe audit recheck[/bold]
    """
    from service.processes.private_servers import open_servers

    left = "Nothing was changed and there is no result. Run the same command again."
    with (
        interrupted(lambda: left),
        open_servers(settings_of_used(home, model)) as settings,
        show_progress("Measuring the files") as work,
    ):
        pointer, figures, measured = _measured(settings, work)
    lines = list(compared(pointer, figures, measured))
    rows = [(line.name, _text(line.recorded), _text(line.measured), _verdict(line.is_same)) for line in lines]
    title = f"{pointer.model}, version {pointer.version}, {measured.live_nodes} live nodes"
    document = {
        "model": pointer.model,
        "version": pointer.version,
        "live_nodes": measured.live_nodes,
        "figures": lines,
    }
    print_result(document, as_json, table(title, ("figure", "recorded", "measured now", ""), rows))
    wrong = [line.name for line in lines if line.is_same is False]
    if wrong:
        report(
            f"The files contradict the record: {', '.join(wrong)}.",
            "Do not rely on the record until this is explained.",
        )
        raise typer.Exit(ExitStatus.FAILED)


def _measured(settings: Settings, work: Work) -> "tuple[Pointer, ServedFigures | None, Measured]":
    from model_store.errors import StoreDamaged
    from model_store.store import Store
    from model_store.versions import VersionRef
    from projector.device import torch_device
    from service.unlearner.measurement import measure

    device = torch_device("cpu" if settings.device == "auto" else settings.device)
    for attempt in (1, 2, 3):
        store = Store.open(settings.model_dir)
        assert settings.database_url is not None
        pointer, figures = asyncio.run(_recorded(settings.database_url, store.manifest.name))
        try:
            return (
                pointer,
                figures,
                measure(
                    store, VersionRef(pointer.version, pointer.fencing), digest=pointer.digest, device=device, work=work
                ),
            )
        except (StoreDamaged, FileNotFoundError):
            # A running Lethe may have replaced the version during the read; retry with its successor.
            if attempt == 3 or asyncio.run(_recorded(settings.database_url, store.manifest.name))[0] == pointer:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _recorded(database_url: str, model: str) -> "tuple[Pointer, ServedFigures | None]":
    """Return the committed version, and the newest event's figures if they belong to it."""
    from service.db.transactions import transaction
    from service.log.events import EventRepository
    from service.predictions.version_rows import PointerRepository

    async with opened(database_url) as engine, transaction(engine) as connection:
        pointer = await PointerRepository(connection).read(model)
        figures = await EventRepository(connection).latest_figures(model)
    if pointer is None:
        raise StateMismatch(
            f"The database has no model {model!r}.", "Serve the model once, or set the LETHE_HOME that serves it."
        )
    return pointer, figures if figures is not None and pointer.version in figures.versions else None


def compared(pointer: Pointer, recorded: "ServedFigures | None", measured: "Measured") -> Iterator[Line]:
    """Yield each figure as recorded in the log or the pointer, beside the measured one."""
    yield Line(
        "weights (SHA-256)",
        pointer.weights_sha256,
        measured.weights_sha256,
        pointer.weights_sha256 == measured.weights_sha256,
    )
    # Events of imports by early software versions have no rank. The version's own claim does not replace a record.
    rank = None if recorded is None else recorded.rank
    is_as_written = measured.rank == measured.rank_written
    same = None if rank is None and is_as_written else is_as_written and rank == measured.rank
    yield Line("rank", rank, measured.rank, same)
    yield _figure("span residual", None if recorded is None else recorded.span_residual, measured.span_residual)
    bound = None if recorded is None else recorded.distance_bound_relative
    yield _figure("distance bound, relative", bound, measured.distance_bound_relative)


def _figure(name: str, recorded: float | None, measured: float | None) -> Line:
    same = None
    if measured is not None and recorded is not None:
        same = measured <= max(_ROUNDING, _SAME_WITHIN * recorded)
    return Line(name, recorded, measured, same)


def _text(value: str | float | None) -> str:
    return str(value) if isinstance(value, str | int) else number(value)


def _verdict(is_same: bool | None) -> str:
    return {True: "the same", False: "DIFFERENT", None: "no record"}[is_same]
