"""The transparency log: events of requests, model and log, each with a leaf and its hashes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, LargeBinary, Select, SmallInteger, Text, Uuid, and_, func, insert, or_, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.dml import ReturningInsert

from service.db import locks
from service.db.locks import Lock
from service.db.rows import REQUEST_COLUMNS, any_of, deletion_request, given, given_rows, unnested
from service.db.tables import EventRow, LeafRow, LogNodeRow, RequestRow
from service.db.transactions import Repository
from service.domain.states import EventType
from service.errors import LetheError
from service.log.commitments import Commitments
from service.log.leaves import Content, LoggedEvent, Payload, ServedFigures, leaf_data, redact
from service.log.merkle import (
    Frontier,
    Subtree,
    consistency_ranges,
    inclusion_ranges,
    leaf_hash,
    needed,
    proof,
    subtrees,
)

#: Every transaction that appends notifies this channel.
LOG_CHANNEL = "lethe_log"
#: Renamed, because every row has a method `index`.
_PLACE = LeafRow.index.label("place")
_OF_EVENTS = select(_PLACE, LeafRow.data, LeafRow.hash).join(EventRow, EventRow.id == LeafRow.event_id)
#: The number of leaves, and the hashes of its largest complete subtrees: one for each binary digit of the number.
_END = text(
    """
    WITH tree AS (SELECT coalesce(max(index) + 1, 0) AS size FROM leaves)
    SELECT tree.size, 0 AS level, leaves.index AS position, leaves.hash
    FROM tree LEFT JOIN leaves ON leaves.index = tree.size - 1
    UNION ALL
    SELECT tree.size, log_nodes.level, log_nodes.position, log_nodes.hash
    FROM tree CROSS JOIN generate_series(1, 62) AS digit (level)
    JOIN log_nodes ON log_nodes.level = digit.level AND log_nodes.position = (tree.size >> digit.level) - 1
    WHERE (tree.size >> digit.level) & 1 = 1
    """
)


def _add_leaves() -> ReturningInsert[Any]:
    """Build the statement that adds leaves and inner nodes of the tree."""
    rows = given_rows(
        "added", index=BigInteger(), event_id=BigInteger(), data=Text(), hash=LargeBinary(), root=LargeBinary()
    )
    inner = given_rows("inner_nodes", level=SmallInteger(), position=BigInteger(), hash=LargeBinary())
    grown = insert(LogNodeRow).from_select(["level", "position", "hash"], select(*inner.c)).cte("grown")
    added = insert(LeafRow).from_select(["index", "event_id", "data", "hash", "root"], select(*rows.c))
    # One call per row; Postgres merges them into one notification.
    return added.add_cte(grown).returning(func.pg_notify(LOG_CHANNEL, ""))


#: Built once, because deletions wait for it.
_ADD_LEAVES = _add_leaves()


class LogDamaged(LetheError):
    """The stored tree lacks a required hash: rows were removed despite the database's guards."""


@dataclass(frozen=True)
class StoredLeaf:
    """One row of `leaves`."""

    index: int
    #: Canonical JSON.
    data: bytes
    hash: bytes


class LogRepository(Repository):
    """The tables `leaves` and `log_nodes` in the caller's transaction."""

    async def take_turn(self) -> None:
        """Wait for other appenders, and exclude them until the caller's transaction ends.

        Call it before `append`, and before locking rows that another appender may want.
        """
        await locks.take(self._conn, Lock.LOG)

    async def append(self, events: Collection[LoggedEvent]) -> None:
        """Add a leaf for each event, in the order of their numbers. The events must be inserted after `take_turn`."""
        tree = await self._end()
        leaves: list[tuple[int, int, str, bytes, bytes]] = []
        nodes: list[tuple[Subtree, bytes]] = []
        for event in events:
            index = tree.size
            data = leaf_data(index, event)
            digest = leaf_hash(data)
            nodes += tree.append(digest)
            leaves.append((index, event.id, data.decode(), digest, tree.root))
        await self._insert(leaves, nodes)

    async def size(self) -> int:
        """Return the number of leaves."""
        last = await self._conn.scalar(select(func.max(LeafRow.index)))
        return 0 if last is None else int(last) + 1

    async def root(self, size: int) -> bytes:
        """Return the root of the tree of the first `size` leaves. Raises `LogDamaged`."""
        return (await self._frontier(size)).root

    async def inclusion(self, index: int, size: int) -> list[bytes]:
        """Return the inclusion proof of a leaf among the first `size`. Raises `LogDamaged`, `ValueError`."""
        ranges = inclusion_ranges(index, size)
        return proof(ranges, await self._hashes(needed(ranges)))

    async def consistency(self, old: int, new: int) -> list[bytes]:
        """Return the proof that the first `old` leaves are unchanged in the first `new`. Raises as `inclusion`."""
        ranges = consistency_ranges(old, new)
        return proof(ranges, await self._hashes(needed(ranges)))

    async def leaf_hash(self, index: int) -> bytes | None:
        """Return the hash of a leaf; None if it does not exist."""
        digest: bytes | None = await self._conn.scalar(select(LeafRow.hash).where(LeafRow.index == index))
        return digest

    async def of_request(self, request_id: UUID) -> list[StoredLeaf]:
        """Return the leaves of a request's events, in order."""
        of_request = EventRow.request_id == request_id
        return await self._stored(_OF_EVENTS.where(of_request).order_by(LeafRow.index))

    async def unrequested(self, *, after: int = -1, limit: int | None = None) -> list[StoredLeaf]:
        """Return up to `limit` leaves of events without a request after the leaf `after`, newest first."""
        asked_by_none = _OF_EVENTS.where(EventRow.request_id.is_(None), LeafRow.index > after)
        return await self._stored(asked_by_none.order_by(EventRow.id.desc()).limit(limit))

    async def _stored(self, query: Select[int, str, bytes]) -> list[StoredLeaf]:
        return [StoredLeaf(row.place, row.data.encode(), row.hash) for row in await self._conn.execute(query)]

    async def _end(self) -> Frontier:
        """Return the frontier of all leaves, in one statement."""
        rows = (await self._conn.execute(_END)).all()
        size = rows[0].size
        found = {Subtree(row.level, row.position): row.hash for row in rows if row.hash is not None}
        edge = subtrees((0, size))
        _require(edge, found)
        return Frontier(size, [found[subtree] for subtree in edge])

    async def _frontier(self, size: int) -> Frontier:
        edge = subtrees((0, size))
        hashes = await self._hashes(edge)
        return Frontier(size, [hashes[subtree] for subtree in edge])

    async def _hashes(self, wanted: Iterable[Subtree]) -> Mapping[Subtree, bytes]:
        """Return the hashes of complete subtrees, including single leaves."""
        wanted = set(wanted)
        found: dict[Subtree, bytes] = {}
        positions = [subtree.position for subtree in wanted if subtree.level == 0]
        if positions:
            query = select(_PLACE, LeafRow.hash).where(LeafRow.index == any_of(positions, BigInteger()))
            found |= {Subtree(0, row.place): row.hash for row in await self._conn.execute(query)}
        inner = [subtree for subtree in wanted if subtree.level > 0]
        if inner:
            places = unnested(
                "wanted",
                level=(SmallInteger(), [subtree.level for subtree in inner]),
                position=(BigInteger(), [subtree.position for subtree in inner]),
            )
            at_place = and_(LogNodeRow.level == places.c.level, LogNodeRow.position == places.c.position)
            rows = select(LogNodeRow.level, LogNodeRow.position, LogNodeRow.hash).join(places, at_place)
            found |= {Subtree(row.level, row.position): row.hash for row in await self._conn.execute(rows)}
        _require(wanted, found)
        return found

    async def _insert(
        self, leaves: Sequence[tuple[int, int, str, bytes, bytes]], nodes: Sequence[tuple[Subtree, bytes]]
    ) -> None:
        indexes, events, texts, hashes, roots = zip(*leaves, strict=True)
        added = given("added", index=indexes, event_id=events, data=texts, hash=hashes, root=roots)
        inner = given(
            "inner_nodes",
            level=[subtree.level for subtree, _ in nodes],
            position=[subtree.position for subtree, _ in nodes],
            hash=[digest for _, digest in nodes],
        )
        await self._conn.execute(_ADD_LEAVES, added | inner)


def _require(wanted: Collection[Subtree], found: Mapping[Subtree, bytes]) -> None:
    """Raise `LogDamaged` unless all of `wanted` are found."""
    if absent := set(wanted) - found.keys():
        raise LogDamaged(
            f"The log lacks {len(absent)} of the hashes that leaf {min(absent).position << min(absent).level} and "
            "later leaves added.",
            "Restore the database from its backup, and find what is missing with `./lethe audit verify`.",
        )


@dataclass(frozen=True)
class Event:
    """One row of `events`."""

    id: int
    request_id: UUID
    type: EventType
    payload: Payload
    created_at: datetime


def _add_events() -> Select[*tuple[Any, ...]]:
    """Build the statement that adds events and returns them with their requests."""
    rows = given_rows("added", request_id=Uuid(), type=Text(), payload=JSONB(), opening=JSONB(none_as_null=True))
    added = insert(EventRow).from_select(["request_id", "type", "payload", "opening"], select(*rows.c))
    new = added.returning(
        *(EventRow.id, EventRow.request_id, EventRow.type, EventRow.payload, EventRow.created_at)
    ).cte("new")
    renamed = [column.label(f"event_{column.key}") for column in new.c]
    return (
        select(*REQUEST_COLUMNS, RequestRow.subject_commitments, RequestRow.reference_commitment, *renamed)
        .select_from(new)
        .outerjoin(RequestRow, RequestRow.id == new.c.request_id)
        .order_by(new.c.id)
    )


_ADD_EVENTS = _add_events()


class EventRepository(Repository):
    """The events of requests. The database refuses a second `applied`, `repaired` or `completed` event of a request."""

    async def append_many(self, event_type: EventType, contents: Mapping[UUID, Content]) -> list[int]:
        """Add an event of one type to each request; see `append`."""
        return await self.append([(event_type, request_id, content) for request_id, content in contents.items()])

    async def append_unrequested(self, event_type: EventType, content: Content) -> int:
        """Add an event of `UNREQUESTED` and its leaf; return its number. Raises `NotCanonical`."""
        [number] = await self.append([(event_type, None, content)])
        return number

    async def append(self, events: Sequence[tuple[EventType, UUID | None, Content]]) -> list[int]:
        """Add events, each of a type, of a request if it has one, and with a leaf; return their numbers in that order.

        The requests must already be in the state after their events. Raises `NotCanonical` for content that cannot be
        logged.
        """
        if not events:
            return []
        log = LogRepository(self._conn)
        # Take the turn first, so that event numbers follow the order of leaves.
        await log.take_turn()
        documents = [redact(content.document()) for _, _, content in events]
        added = given(
            "added",
            request_id=[request_id for _, request_id, _ in events],
            type=[event_type.value for event_type, _, _ in events],
            payload=[payload for payload, _ in documents],
            opening=[opening for _, opening in documents],
        )
        logged = [
            LoggedEvent(
                id=row.event_id,
                type=EventType(row.event_type),
                payload=row.event_payload,
                created_at=row.event_created_at,
                request=None if row.event_request_id is None else deletion_request(row),
                commitments=Commitments(row.subject_commitments, row.reference_commitment),
            )
            for row in await self._conn.execute(_ADD_EVENTS, added)
        ]
        await log.append(logged)
        return [event.id for event in logged]

    async def of_request(self, request_id: UUID) -> list[Event]:
        """Return the events of a request, oldest first."""
        query = select(EventRow.__table__).where(EventRow.request_id == request_id).order_by(EventRow.id)
        return [
            Event(row.id, request_id, EventType(row.type), row.payload, row.created_at)
            for row in await self._conn.execute(query)
        ]

    async def latest_figures(self, model: str) -> ServedFigures | None:
        """Return the figures of a model's weights from the newest event that has any; None if none exists."""
        of_request = and_(RequestRow.model == model, EventRow.payload.has_key("rank_after"))
        of_model = and_(EventRow.request_id.is_(None), EventRow.payload["model"].astext == model)
        query = (
            select(EventRow.payload, EventRow.opening)
            .outerjoin(RequestRow, RequestRow.id == EventRow.request_id)
            .where(or_(of_request, of_model))
            .order_by(EventRow.id.desc())
            .limit(1)
        )
        found = (await self._conn.execute(query)).one_or_none()
        return None if found is None else ServedFigures.read(found.payload, found.opening)
