"""`lethe recover`: continue with a store and a database from different moments."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from service.cli.console import Json, interrupted, note, show_progress
from service.cli.database import opened
from service.cli.recovery_report import report
from service.cli.serve import setting_option
from service.cli.server import Home
from service.domain.formats import plural
from service.domain.states import RepairPolicy
from service.errors import AlreadyRunning, ConfigurationError, LeaseLost, StateMismatch
from service.home_id import id_of, require_local_disks
from service.settings import Settings, load_settings

if TYPE_CHECKING:
    from model_store.store import Store
    from service.db.engine import Connection, Engine
    from service.domain.records import Lease
    from service.unlearner.recovery import Recovered

#: Seconds between attempts to acquire the lease.
_ASK_S = 0.2
#: Most leases that one recovery may lose before it gives up.
_MOST_LOSSES = 5
_LEFT = "The work so far is kept. Run the same command again before you start Lethe."


def command(
    home: Home = Path("var"),
    model: Annotated[
        Path | None, typer.Option(envvar="LETHE_MODEL", help="Folder of the model.", show_default="model in LETHE_HOME")
    ] = None,
    repair: Annotated[RepairPolicy, typer.Option(envvar="LETHE_REPAIR", help="As for `serve`.")] = RepairPolicy.ALWAYS,
    repair_tolerance: Annotated[str | None, setting_option("repair_tolerance")] = None,
    certify: Annotated[str | None, setting_option("certify")] = None,
    certify_publications: Annotated[str | None, setting_option("certify_publications")] = None,
    device: Annotated[str, typer.Option(envvar="LETHE_DEVICE", help="auto, cpu or cuda.")] = "auto",
    accept_lost: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Continue without something that is lost for good: requests (queued requests fail and must be "
            "sent again), api-pepper (every API key is revoked), body (which recognises repeated requests), or "
            "tombstones (unreadable tombstones of the "
            "model). Repeatable.",
        ),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Assign the database to this LETHE_HOME, which is a copy or was restored from a backup. Everything "
            "that runs in the other home must be stopped for good.",
        ),
    ] = False,
    ledger: Annotated[
        bool,
        typer.Option(
            "--ledger",
            help="Also delete again what only the erasure ledger (LETHE_LEDGER) records, after home and database were "
            "both restored from an older backup.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Recover after a restored backup of the store, the database or, with the erasure ledger, both.

    Everything that store, database or ledger records as deleted is deleted again. The output lists what none of them
    records. Lethe must be stopped. Safe to run again.

    Examples: [bold]./lethe recover[/bold], [bold]LETHE_LEDGER=/mnt/ledger ./lethe recover --ledger[/bold]
    """
    from model_store.replacement import finish_move
    from model_store.store import Store
    from service.observability.logging import configure_logging
    from service.predictions.layout import in_use
    from service.processes.private_servers import open_servers, owns_database

    settings = load_settings(
        home=home,
        model=model,
        repair=repair.value,
        repair_tolerance=repair_tolerance,
        certify=certify,
        certify_publications=certify_publications,
        device=device,
    )
    if ledger and settings.ledger is None:
        raise ConfigurationError("No erasure ledger is configured.", "Set LETHE_LEDGER as for `serve`.")
    configure_logging(settings.log_format, settings.log_level, process="recover")
    require_local_disks(settings.home, settings.share)
    with interrupted(lambda: _LEFT), open_servers(settings, alone=True) as reached, in_use(settings.home):
        finish_move(reached.model_dir)
        take_over = take_over or owns_database(reached)
        accepted = frozenset(accept_lost or ())
        store = Store.open(reached.model_dir)
        recovered = asyncio.run(_recover(reached, store, accepted, take_over=take_over, with_ledger=ledger))
    report(recovered, as_json)


async def _recover(
    settings: Settings, store: "Store", accepted: frozenset[str], *, take_over: bool, with_ledger: bool
) -> "Recovered":
    from service.access.request_keys import RequestKeys
    from service.db import migrate, roles
    from service.db.roles import UNLEARNER_ROLE
    from service.observability.metrics import UnlearningMetrics, new_registry
    from service.predictions.version_rows import PointerRepository
    from service.processes.key_folder import (
        SLOTS,
        accept_lost,
        home_check,
        lost_requests,
        open_keyring,
        open_request_keys,
    )
    from service.unlearner.agreement import require_unpromised
    from service.unlearner.context import Context
    from service.unlearner.deleted_parts import TOMBSTONES
    from service.unlearner.lease_keeper import give_back, holding
    from service.unlearner.recovery import Recoverer

    assert settings.database_url is not None
    keys = settings.home / "keys"

    async def belongs(connection: "Connection") -> None:
        # Another Lethe's database must not change, nor may noise be dropped if it was promised. All other conditions
        # that `serve` refuses are what recovery is for.
        if not take_over:
            await check_home(connection)
        await PointerRepository(connection).require_only(store.manifest.name)
        if settings.certify is None:
            await require_unpromised(connection, store)

    check_home = await home_check(settings)
    await migrate.upgrade(settings.database_url, belongs)
    engine = await roles.open_engine(settings.database_url, UNLEARNER_ROLE)
    try:
        if lost_keys := accepted - {TOMBSTONES}:
            # First exclude another home's unlearner, which may be working with these keys. This does not take the
            # database over yet, because keys may turn out to be missing.
            lease = await _lease(settings, engine, store, home=None, take_over=False, with_ledger=with_ledger)
            try:
                async with opened(settings.database_url) as owner:
                    revoked = await accept_lost(owner, settings, lost_keys, take_over=take_over)
            finally:
                await give_back(engine, lease)
            if revoked:
                note(f"Revoked {plural(revoked, 'API key')}; the next start creates a first one.")
        keyring = await open_keyring(engine, settings, take_over=take_over)
        if SLOTS in accepted:
            request_keys = RequestKeys(keys / SLOTS)
        else:
            request_keys = await open_request_keys(engine, keys, keyring)
        lost = await lost_requests(engine, request_keys, keyring)
        with ThreadPoolExecutor(1, thread_name_prefix="recover") as executor:

            async def attempt(store: "Store") -> "Recovered":
                home = await asyncio.to_thread(id_of, settings.home)
                lease = await _lease(settings, engine, store, home=home, take_over=take_over, with_ledger=with_ledger)
                try:
                    async with holding(engine, lease) as keeper:
                        with show_progress("Comparing store and database") as work, keeper.blaming_loss():
                            context = Context.of(
                                settings,
                                engine,
                                keyring,
                                request_keys,
                                store.manifest.name,
                                name="recover",
                                metrics=UnlearningMetrics(new_registry()),
                                executor=executor,
                                repair_budget_s=0.0,
                                stop=asyncio.Event(),
                                work=work,
                            )
                            return await Recoverer(context, store, keeper).recover(
                                lost, accept_lost_tombstones=TOMBSTONES in accepted, with_ledger=with_ledger
                            )
                finally:
                    await give_back(engine, lease)

            return await _persistently(attempt, store)
    finally:
        await engine.dispose()


async def _persistently(attempt: "Callable[[Store], Awaitable[Recovered]]", store: "Store") -> "Recovered":
    """Recover, starting over if the lease was not renewed in time, as on an overloaded machine."""
    from service.unlearner.lease_keeper import RenewalFailed

    losses = 0
    while True:
        try:
            return await attempt(store)
        except (LeaseLost, RenewalFailed) as error:
            losses += 1
            if losses == _MOST_LOSSES:
                raise
            said = error.detail if isinstance(error, LeaseLost) else str(error)
            note(f"{said} Starting again; finished steps are not repeated.")
            store = type(store).open(store.path)


async def _lease(
    settings: Settings, engine: "Engine", store: "Store", *, home: str | None, take_over: bool, with_ledger: bool
) -> "Lease":
    """Acquire the lease, waiting for a killed process's lease to expire; `home` is as for `lease.acquire`.

    Raises AlreadyRunning when it does not expire, and AnotherHome unless `take_over` is set. Raises StateMismatch if
    the erasure ledger is ahead of the database and not replayed, or has no entry to replay.
    """
    from service.db import lease as leases
    from service.ledger.erasure_ledger import ErasureLedger
    from service.predictions.writer import Publisher
    from service.unlearner.securing import require_replayed

    ledger = ErasureLedger.of(settings.ledger, settings.home, store.manifest.name)
    head = None if ledger is None else await asyncio.to_thread(ledger.open)
    above = max(store.fencing(), Publisher(settings.home, settings.share).highest_fencing())
    if ledger is not None and head is None and with_ledger:
        raise StateMismatch(f"The erasure ledger {ledger.name} has no entries.", "Mount it, or leave --ledger out.")
    if ledger is not None and head is not None:
        if not with_ledger:
            await require_replayed(engine, ledger)
        # Whatever is written from now on is later than all that the ledger records.
        above = max(above, head.record.fencing)
    deadline = time.monotonic() + 2 * settings.lease_ttl_s
    while True:
        lease = await leases.acquire(
            engine,
            store.manifest.name,
            f"recover-{uuid4().hex}",
            settings.lease_ttl_s,
            above=above,
            home=home,
            take_over=take_over,
        )
        if lease is not None:
            return lease
        if time.monotonic() > deadline:
            raise AlreadyRunning(
                f"Another process holds the lease on the model {store.manifest.name}.",
                "Stop it and run the command again.",
            )
        await asyncio.sleep(_ASK_S)
