"""Keep the erasure ledger in step with the database, and find what only the ledger still knows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from sqlalchemy import func, select

from model_store.tombstones import RecordedTombstone
from model_store.versions import VersionRef
from service.db.engine import Connection, Engine
from service.db.rows import any_of
from service.db.tables import RequestRow
from service.db.transactions import transaction
from service.domain.states import Cause
from service.domain.versions import LedgerReplay, Version
from service.errors import StateMismatch
from service.ledger.erasure_ledger import ErasureLedger
from service.ledger.sealed_entries import Entry, Record
from service.log.events import LogRepository
from service.predictions.version_rows import VersionRow
from service.requests.tombstones import TombstoneRepository
from service.unlearner.context import Context
from service.unlearner.deleted_parts import for_store

#: Remedy when the ledger records what the database does not.
REPLAY = "Stop Lethe and run `./lethe recover --ledger`, which deletes again all that the ledger records."


async def secure(context: Context, version: Version) -> None:
    """Record a finished version in the ledger, before its requests are completed.

    Changes nothing if the ledger has it. The entry of a recovery has all tombstones of the database.

    Raises Unavailable, and StateMismatch if another home writes to the ledger.
    """
    ledger = context.erasures
    if ledger is None or ledger.head is None or version.number <= ledger.head.record.number:
        return
    async with transaction(context.engine) as connection:
        record = await _since(
            connection, context, ledger.head.record.number, version.id, version.number, version.fencing
        )
        if version.cause is Cause.RECOVERY:
            # Between a restore and its recovery, Lethe may have run without the ledger, under numbers that it has.
            void = [one for one in record.tombstones if one.is_void]
            everything = await _everything(connection, context)
            record = replace(record, tombstones=(*everything.tombstones, *void))
    if record.requests or record.tombstones:
        await context.run(partial(ledger.append, record))


async def agree(context: Context) -> None:
    """Read the ledger at the start of a session, and add what the database recorded without it.

    A new ledger begins with all tombstones of the database. Raises StateMismatch if the ledger is ahead of the
    database, which was then restored from an older backup; also KeyMissing and Unavailable.
    """
    ledger = context.erasures
    if ledger is None:
        return
    head = await context.run(ledger.open)
    async with transaction(context.engine) as connection:
        if head is not None:
            await _require_known(connection, ledger, head)
        query = select(VersionRow.id, VersionRow.number, VersionRow.fencing).where(VersionRow.model == context.model)
        query = query.where(VersionRow.finished_at.is_not(None)).order_by(VersionRow.number.desc()).limit(1)
        newest = (await connection.execute(query)).one_or_none()
        if head is None:
            record = await _everything(connection, context)
            if newest is not None:
                record = replace(record, version=newest.id, number=newest.number, fencing=newest.fencing)
        elif newest is not None and newest.number > head.record.number:
            record = await _since(connection, context, head.record.number, newest.id, newest.number, newest.fencing)
        else:
            return
    if head is None or record.requests or record.tombstones:
        await context.run(partial(ledger.append, record))


@dataclass(frozen=True)
class Replay:
    """What the ledger records and the database does not."""

    #: Tombstones of what must be deleted again, all of them valid.
    tombstones: Sequence[RecordedTombstone] = ()
    #: Versions that the database does not know, with their requests' kinds.
    requests: dict[UUID, str] | None = None
    #: The highest version number and fencing number in the ledger.
    number: int = 0
    #: For the log; None if the database has everything.
    summary: LedgerReplay | None = None


async def missing_from_database(context: Context, current: VersionRef) -> Replay:
    """Read the whole ledger; return what the database lacks. `current` is the store's version.

    An entry counts for the data in the store only if the store is older. A node that was deleted and joined again since
    is deleted again, because the store has its older data; its addition must be sent again. Raises StateMismatch if the
    ledger was changed, or has forgotten what the database lacks; KeyMissing and Unavailable.
    """
    ledger = context.erasures
    if ledger is None:
        return Replay()
    entries = await context.run(lambda: list(ledger.entries()))
    if not entries:
        return Replay()
    head = entries[-1]
    named = {entry.record.version for entry in entries} | {head.trimmed.version}
    async with transaction(context.engine) as connection:
        query = select(VersionRow.id).where(VersionRow.id == any_of([one for one in named if one is not None]))
        known = set((await connection.execute(query)).scalars())
    # An entry that the database knows covers those before it: it is from the same history, or from a recovery that
    # replayed them.
    covered = max((place for place, entry in enumerate(entries, 1) if entry.record.version in known), default=0)
    lost = [entry for entry in entries[covered:] if entry.record.version is not None]
    if lost and head.trimmed.version is not None and head.trimmed.version not in known and lost[0] is entries[0]:
        raise StateMismatch(
            f"The erasure ledger {ledger.name} begins at entry {head.trimmed.first}, and the database is older: what "
            "was deleted between them is not in it any more.",
            "Restore a newer backup. Without one, delete from your own register of requests what that time contains.",
        )
    newest: dict[bytes, RecordedTombstone] = {}
    again: set[bytes] = set()
    requests: dict[UUID, str] = {}
    for entry in lost:
        requests |= entry.record.requests
        in_store = (entry.record.fencing, entry.record.number) <= (current.fencing, current.version)
        for one in entry.record.tombstones:
            newest[one.hash] = one
            # Void or not: an entry of several versions may have the deletion and the return in one.
            if not in_store:
                again.add(one.hash)
    wanted = [one for one in newest.values() if not one.is_void or one.hash in again]
    summary = LedgerReplay(
        entries=len(lost),
        head=head.number,
        head_sha256=head.sha256,
        tombstones=len(wanted),
        rejoined=sum(one.is_void for one in wanted),
        requests=len(requests),
        log_size=head.record.log_size,
    )
    return Replay(
        tuple(replace(one, is_void=False) for one in wanted),
        requests,
        max(entry.record.number for entry in entries),
        summary if lost else None,
    )


async def require_replayed(engine: Engine, ledger: ErasureLedger) -> None:
    """Raise StateMismatch if an opened ledger records what the database does not, for a recovery without `--ledger`."""
    if ledger.head is not None:
        async with transaction(engine) as connection:
            await _require_known(connection, ledger, ledger.head)


async def _require_known(connection: Connection, ledger: ErasureLedger, head: Entry) -> None:
    record = head.record
    if record.version is None:
        return
    query = select(func.count()).select_from(VersionRow).where(VersionRow.id == record.version)
    if not await connection.scalar(query):
        raise StateMismatch(
            f"The erasure ledger {ledger.name} records version {record.number}-{record.fencing}, which this database "
            "does not know: the database was restored from an older backup, or another home writes to this ledger.",
            f"Nothing was removed. {REPLAY}",
        )


async def _everything(connection: Connection, context: Context) -> Record:
    """Return the record with which a ledger begins."""
    tombstones = await TombstoneRepository(connection).of_model(context.model)
    size, root = await _log(connection)
    recorded = tuple(for_store(tombstones, context.keyring))
    return Record(context.model, None, 0, 0, recorded, log_size=size, log_root=root)


async def _since(
    connection: Connection, context: Context, after: int, version: UUID, number: int, fencing: int
) -> Record:
    """Return what the versions after number `after` deleted, up to the `version` with this number."""
    numbers = (VersionRow.model == context.model, VersionRow.number > after, VersionRow.number <= number)
    query = select(RequestRow.id, RequestRow.kind).join(VersionRow, VersionRow.id == RequestRow.batch_id)
    requests = {row.id: row.kind for row in await connection.execute(query.where(*numbers))}
    repository = TombstoneRepository(connection)
    tombstones = await repository.of_requests(requests) if requests else []
    recoveries = select(VersionRow.id).where(*numbers, VersionRow.cause == Cause.RECOVERY)
    if found := list((await connection.execute(recoveries)).scalars()):
        tombstones += await repository.of_recoveries(found)
    size, root = await _log(connection)
    recorded = tuple(for_store(tombstones, context.keyring))
    return Record(context.model, version, number, fencing, recorded, requests, log_size=size, log_root=root)


async def _log(connection: Connection) -> tuple[int, str]:
    log = LogRepository(connection)
    size = await log.size()
    return size, (await log.root(size)).hex() if size else ""
