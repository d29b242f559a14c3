"""Signed checkpoints of the log: signing them whenever it has grown, keeping them, and who has checked them."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import structlog
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.engine import Engine
from service.db.notifications import listen
from service.db.tables import ApiKeyRow, CheckpointRow, LogCheckRow, LogKeyRow
from service.db.transactions import transaction
from service.domain.states import EventType
from service.errors import Conflict, InvalidRequest, LetheError, Unavailable
from service.log.checkpoints import Checkpoint, Signer, VerifierKey, read, sign, signers_of, verify
from service.log.events import LOG_CHANNEL, EventRepository, LogRepository
from service.log.leaves import LogKeyAdded
from service.log.signing_keys import LogKeys
from service.observability.metrics import UnlearningMetrics
from service.queue.outage import Outage, run_until


class LogForked(LetheError):
    """The log in the database is not what was signed before, so it is not signed again."""


class CheckpointRepository:
    """The tables `checkpoints` and `log_keys` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def latest(self) -> str | None:
        """Return the newest checkpoint as a signed note, None when nothing was signed yet."""
        query = select(CheckpointRow.note).order_by(CheckpointRow.id.desc()).limit(1)
        note: str | None = await self._conn.scalar(query)
        return note

    async def require(self) -> str:
        """As `latest`; raises `Unavailable` before the first, which the unlearner's start makes."""
        note = await self.latest()
        if note is None:
            raise Unavailable("The log is not signed yet.", "Try again in a moment.")
        return note

    async def keys(self) -> dict[int, VerifierKey]:
        """Return the public keys that have signed, by number, for `LogKeys.check`."""
        query = select(LogKeyRow.number, LogKeyRow.public_key).order_by(LogKeyRow.number)
        return {row.number: VerifierKey.parse(row.public_key) for row in await self._conn.execute(query)}

    async def is_due(self) -> bool:
        """Return whether there are leaves that no checkpoint covers, or no checkpoint at all."""
        note = await self.latest()
        return note is None or read(note).size < await LogRepository(self._conn).size()

    async def sign(self, keys: LogKeys) -> Checkpoint:
        """Sign the log as it stands, unless these very keys have; return the newest checkpoint.

        Raises `KeyMissing` when `keys` are not those of this log, `LogForked` when the log does not begin with what was
        signed last, `LogDamaged` when it lacks hashes. Nothing is signed then.
        """
        log = LogRepository(self._conn)
        await log.take_turn()
        known = await self.keys()
        keys.check(known)
        signers = keys.signers()
        if not signers.keys() <= known.keys():
            await self._register(signers, known)
            known = await self.keys()
        size = await log.size()
        note = await self.latest()
        if note is not None:
            before = verify(note, known.values())
            if before.size > size or await log.root(before.size) != before.root:
                raise _forked(before, size)
            if before.size == size and signers_of(note) >= {signer.public.id for signer in signers.values()}:
                return before
        checkpoint = Checkpoint(keys.origin, size, await log.root(size))
        signed = sign(checkpoint, list(signers.values()))
        await self._conn.execute(insert(CheckpointRow).values(size=size, note=signed))
        return checkpoint

    async def _register(self, signers: Mapping[int, Signer], known: Collection[int]) -> None:
        """Note the keys that sign for the first time; a log that others signed before tells of each of them."""
        rows = [{"number": number, "public_key": str(signer.public)} for number, signer in signers.items()]
        await self._conn.execute(insert(LogKeyRow).values(rows).on_conflict_do_nothing())
        for number, signer in signers.items() if known else ():
            if number not in known:
                added = LogKeyAdded(number, str(signer.public))
                await EventRepository(self._conn).append_unrequested(EventType.LOG_KEY_ADDED, added)


def _forked(before: Checkpoint, size: int) -> LogForked:
    if before.size > size:
        found = f"has {size} leaves, and {before.size} were signed before"
    else:
        found = f"does not begin with the {before.size} leaves that were signed before"
    return LogForked(
        f"The transparency log {found}: it was changed despite the guards of the database.",
        "Nothing is signed. Find the change with `./lethe audit verify`, and restore the database.",
    )


@dataclass(frozen=True)
class Extent:
    """Size and root of a log at a checkpoint."""

    #: Number of leaves.
    size: int
    root: bytes


@dataclass(frozen=True)
class LogCheck:
    """The newest check of the log that somebody has reported."""

    #: Name of the API key.
    by: str
    #: Number of leaves.
    size: int
    #: How many the earlier log had that it was compared with.
    against_size: int
    at: datetime


class LogCheckRepository:
    """The table `log_checks` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def record(self, api_key_id: UUID, checked: Extent, against: Extent) -> None:
        """Record that the holder of this key found the log grown from `against` to `checked`.

        Raises `InvalidRequest` unless `against` has leaves, and fewer than `checked`: comparing a log with itself
        proves nothing. Raises `Conflict` if this log has other roots there, or fewer leaves: they checked another log.
        """
        if not 0 < against.size < checked.size:
            raise InvalidRequest(
                f"A checkpoint of {checked.size} leaves cannot be checked against one of {against.size}.",
                "Compare it with an earlier, smaller checkpoint.",
            )
        log = LogRepository(self._conn)
        for extent in (checked, against):
            if extent.size > await log.size() or await log.root(extent.size) != extent.root:
                raise Conflict(
                    f"This log does not have that root at {extent.size} leaves.",
                    "Keep your checkpoint: either it belongs to another log, or this log was changed.",
                )
        added = insert(LogCheckRow).values(api_key_id=api_key_id, size=checked.size, against_size=against.size)
        newer = {"size": added.excluded.size, "against_size": added.excluded.against_size}
        await self._conn.execute(added.on_conflict_do_update(index_elements=["api_key_id"], set_=newer))

    async def newest(self) -> LogCheck | None:
        """Return the newest check, None when nobody has reported one."""
        query = select(ApiKeyRow.name, LogCheckRow.size, LogCheckRow.against_size, LogCheckRow.checked_at)
        query = query.join(ApiKeyRow, ApiKeyRow.id == LogCheckRow.api_key_id)
        row = (await self._conn.execute(query.order_by(LogCheckRow.checked_at.desc()).limit(1))).one_or_none()
        return None if row is None else LogCheck(*row)


#: Longest time a leaf waits for its checkpoint should a notification get lost (seconds).
_POLL_S = 1.0


class LogSigner:
    """Makes a checkpoint after every append, woken by Postgres' NOTIFY and by a poll in case one got lost."""

    def __init__(self, engine: Engine, keys: LogKeys, metrics: UnlearningMetrics) -> None:
        self._engine = engine
        self._keys = keys
        self._metrics = metrics
        self._outage = Outage("log")
        self._log = structlog.get_logger(__name__)

    async def run(self, stop: asyncio.Event) -> None:
        """Sign until `stop` is set, through any outage of Postgres.

        Raises KeyMissing, LogForked or LogDamaged when the log cannot be signed in good faith.
        """
        await run_until(stop, self._run())

    async def sign_pending(self) -> int:
        """Sign what no checkpoint covers yet; returns the size that is signed. Raises as `run`, and Unavailable."""
        async with transaction(self._engine) as connection:
            checkpoint = await CheckpointRepository(connection).sign(self._keys)
        self._metrics.log_signed(checkpoint.size)
        return checkpoint.size

    async def _run(self) -> None:
        # Once whether it is due or not: the keys may be newer than the last checkpoint.
        is_due = True
        while True:
            try:
                # Listening comes first: what is appended after the signing below still wakes the wait.
                async with listen(self._engine, LOG_CHANNEL) as wakeup:
                    while True:
                        if is_due:
                            size = await self.sign_pending()
                            self._log.debug("log.signed", size=size)
                        self._outage.over()
                        # Told of leaves, it need not look whether there are any.
                        is_due = await wakeup.wait(_POLL_S) or await self._is_due()
            except Unavailable as error:
                await self._outage.pause(error)

    async def _is_due(self) -> bool:
        async with transaction(self._engine) as connection:
            return await CheckpointRepository(connection).is_due()
