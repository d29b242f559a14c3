"""Signed checkpoints of the transparency log, and the public keys that signed them."""

from collections.abc import Collection, Mapping

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.audit.checkpoint import Checkpoint, Signer, VerifierKey, read, sign, signers_of, verify
from service.db.tables import CheckpointRow, LogKeyRow
from service.domain.states import EventType
from service.errors import LetheError, Unavailable
from service.evidence.contents import LogKeyAdded
from service.evidence.events import EventRepository
from service.evidence.log import LogRepository
from service.vault.log_keys import LogKeys


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
