"""Signed checkpoints of the log: signing whenever it grows, storing them, and recording who has checked them."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import structlog
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from service.db.access_tables import ApiKeyRow
from service.db.engine import Engine
from service.db.notifications import listen
from service.db.tables import CheckpointRow, LogCheckRow, LogKeyRow
from service.db.transactions import Repository, transaction
from service.domain.states import EventType
from service.errors import Conflict, InvalidRequest, LetheError, Unavailable
from service.log.checkpoints import Checkpoint, Signer, VerifierKey, read, sign, signers_of, verify
from service.log.events import LOG_CHANNEL, EventRepository, LogRepository
from service.log.leaves import LogKeyAdded
from service.log.signing_keys import LogKeys
from service.observability.metrics import UnlearningMetrics
from service.queue.outage import Outage, run_until


class LogForked(LetheError):
    """The log in the database contradicts what was signed before, so it is not signed again."""


class CheckpointRepository(Repository):
    """The tables `checkpoints` and `log_keys` in the caller's transaction."""

    async def latest(self) -> str | None:
        """Return the newest checkpoint as a signed note; None before the first."""
        query = select(CheckpointRow.note).order_by(CheckpointRow.id.desc()).limit(1)
        note: str | None = await self._conn.scalar(query)
        return note

    async def require(self) -> str:
        """Return `latest`. Raises `Unavailable` before the first, which the unlearner makes when it starts."""
        note = await self.latest()
        if note is None:
            raise Unavailable("The log is not signed yet.", "Try again in a moment.")
        return note

    async def keys(self) -> dict[int, VerifierKey]:
        """Return the public keys that have signed, by number, for `LogKeys.check`."""
        query = select(LogKeyRow.number, LogKeyRow.public_key).order_by(LogKeyRow.number)
        return {row.number: VerifierKey.parse(row.public_key) for row in await self._conn.execute(query)}

    async def is_due(self) -> bool:
        """Return whether leaves lack a checkpoint, or there is no checkpoint at all."""
        note = await self.latest()
        return note is None or read(note).size < await LogRepository(self._conn).size()

    async def sign(self, keys: LogKeys) -> Checkpoint:
        """Sign the current log, unless these keys already have; return the newest checkpoint.

        Signs nothing and raises `KeyMissing` if `keys` are not this log's, `LogForked` if the log does not extend the
        last signed one, or `LogDamaged` if it lacks hashes.
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
        """Register keys that sign for the first time. If others signed before, log each new one."""
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
    """The newest reported check of the log."""

    #: Name of the API key.
    by: str
    #: Number of leaves.
    size: int
    #: Number of leaves of the earlier log in the comparison.
    against_size: int
    at: datetime


class LogCheckRepository(Repository):
    """The table `log_checks` in the caller's transaction."""

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
        """Return the newest check; None if nobody reported one."""
        query = select(ApiKeyRow.name, LogCheckRow.size, LogCheckRow.against_size, LogCheckRow.checked_at)
        query = query.join(ApiKeyRow, ApiKeyRow.id == LogCheckRow.api_key_id)
        row = (await self._conn.execute(query.order_by(LogCheckRow.checked_at.desc()).limit(1))).one_or_none()
        return None if row is None else LogCheck(*row)


#: Longest wait of a leaf for its checkpoint if a notification gets lost (seconds).
_POLL_S = 1.0
#: Time limit of the last signing before the end (seconds).
_LAST_S = 2.0


class LogSigner:
    """Makes a checkpoint after every append, woken by NOTIFY, or by polling if a notification got lost."""

    def __init__(self, engine: Engine, keys: LogKeys, metrics: UnlearningMetrics) -> None:
        self._engine = engine
        self._keys = keys
        self._metrics = metrics
        self._outage = Outage("log")
        self._log = structlog.get_logger(__name__)

    async def run(self, stop: asyncio.Event) -> None:
        """Sign until `stop` is set, through any outage of Postgres.

        Raises KeyMissing, LogForked or LogDamaged if the log cannot be signed in good faith.
        """
        await run_until(stop, self._run())

    async def sign_last(self) -> None:
        """Sign what was appended while other activities ended. The next start signs what this cannot, or says why."""
        try:
            async with asyncio.timeout(_LAST_S):
                await self.sign_pending()
        except (LetheError, TimeoutError) as error:
            self._log.warning("log.not_signed", reason=str(error) or f"no answer within {_LAST_S:.0f} s")

    async def sign_pending(self) -> int:
        """Sign leaves that lack a checkpoint; return the signed size. Raises as `run`, and Unavailable."""
        async with transaction(self._engine) as connection:
            checkpoint = await CheckpointRepository(connection).sign(self._keys)
        self._metrics.log_signed.set(checkpoint.size)
        return checkpoint.size

    async def _run(self) -> None:
        # Sign once unconditionally, because the keys may be newer than the last checkpoint.
        is_due = True
        while True:
            try:
                # Listen first, so that leaves appended after the signing below still wake the wait.
                async with listen(self._engine, LOG_CHANNEL) as wakeup:
                    while True:
                        if is_due:
                            size = await self.sign_pending()
                            self._log.debug("log.signed", size=size)
                        self._outage.over()
                        # A notification means new leaves, so no query is needed.
                        is_due = await wakeup.wait(_POLL_S) or await self._is_due()
            except Unavailable as error:
                await self._outage.pause(error)

    async def _is_due(self) -> bool:
        async with transaction(self._engine) as connection:
            return await CheckpointRepository(connection).is_due()
