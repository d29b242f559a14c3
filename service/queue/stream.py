"""The Redis stream that carries request ids from the relay to the unlearner.

Postgres is the source of truth. The stream may be emptied, trimmed, duplicated or reordered at any time, and holds only
request ids and their traces. An entry leaves it when it is acknowledged.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from service.queue.connection import refusal

_GROUP = "unlearner"
_FIELD, _TRACE = b"request", b"traceparent"
#: Entries read, claimed or written per command.
_PAGE = 500

_T = TypeVar("_T")


@dataclass(frozen=True)
class Entry:
    """One delivery of a request id; a request may be delivered more than once."""

    #: Redis' id of the entry, `<milliseconds>-<sequence>`.
    entry_id: str
    request_id: UUID
    #: The span of the call that made the request, in W3C's format, as read: unchecked.
    traceparent: str | None = None


@dataclass(frozen=True)
class Contents:
    """The entries of the stream, in order."""

    #: Given to a consumer, or skipped; not delivered again.
    delivered: Sequence[Entry]
    #: Not yet delivered to the group's consumers.
    upcoming: Sequence[Entry]


class DeletionStream:
    """The stream of one model, and the consumer group of its unlearners.

    Every method raises Unavailable if Redis does not answer or refuses to serve.
    """

    def __init__(self, redis: Redis, model: str) -> None:
        self.model = model
        self._redis = redis
        self._key = f"lethe:{model}:deletions"

    async def ping(self) -> None:
        """Check that Redis answers."""
        async with self._outages():
            await self._redis.ping()

    async def ensure_group(self) -> None:
        """Create the stream and consumer group if missing; the group reads from the stream's beginning.

        A group positioned past the stream's end is reset to the beginning, since it would never get new entries.
        """
        async with self._outages():
            try:
                # From 0, not from the end: entries published before the group existed must be delivered.
                await self._redis.xgroup_create(self._key, _GROUP, id="0", mkstream=True)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
                # In this order, because the end only moves forward.
                position = await self._position()
                end = (await self._redis.xinfo_stream(self._key))["last-generated-id"]
                if position > _number(end):
                    await self._redis.xgroup_setid(self._key, _GROUP, id="0")
                    structlog.get_logger(__name__).warning("stream.group_moved_back")

    async def publish(
        self, request_ids: Iterable[UUID], traceparents: Mapping[UUID, str | None] = MappingProxyType({})
    ) -> None:
        """Append one entry per id, in order, with its traceparent if it has one."""
        async with self._outages():
            for page in _pages(list(request_ids)):
                async with self._redis.pipeline(transaction=False) as pipeline:
                    for request_id in page:
                        fields: dict[Any, Any] = {_FIELD: str(request_id)}
                        if (traceparent := traceparents.get(request_id)) is not None:
                            fields[_TRACE] = traceparent
                        pipeline.xadd(self._key, fields)
                    await pipeline.execute()

    async def claim(self, consumer: str, *, count: int, block_ms: int) -> list[Entry]:
        """Return up to `count` undelivered entries, waiting up to `block_ms` for the first; possibly none.

        `block_ms` must be shorter than the connection's socket timeout; 0 does not wait.
        """
        async with self._outages():
            try:
                response = await self._redis.xreadgroup(
                    _GROUP, consumer, {self._key: ">"}, count=count, block=block_ms or None
                )
            except ResponseError as error:
                if not _group_is_missing(error):
                    raise
                await self.ensure_group()
                return []
            return await self._entries(_only_stream(response))

    async def reclaim(self, consumer: str, *, idle_ms: int) -> list[Entry]:
        """Take over every entry delivered at least `idle_ms` ago and never acknowledged, from any consumer."""
        found: list[Entry] = []
        cursor: Any = "0-0"
        async with self._outages():
            while True:
                try:
                    cursor, raw, *_ = await self._redis.xautoclaim(
                        self._key, _GROUP, consumer, idle_ms, start_id=cursor, count=_PAGE
                    )
                except ResponseError as error:
                    if not _group_is_missing(error):
                        raise
                    await self.ensure_group()
                    return found
                found += await self._entries(raw)
                if _text(cursor) == "0-0":
                    return found

    async def acknowledge(self, entries: Sequence[Entry]) -> None:
        """Remove the entries; ignores those already gone."""
        await self._remove([entry.entry_id for entry in entries])

    async def contents(self) -> Contents:
        """Return every entry of the stream that names a request; the group must exist."""
        delivered: list[Entry] = []
        upcoming: list[Entry] = []
        start = "-"
        async with self._outages():
            position = await self._position()
            while page := await self._redis.xrange(self._key, min=start, max="+", count=_PAGE):
                for entry_id, fields in page:
                    request_id = _request_id(fields)
                    if request_id is not None:
                        found = upcoming if _number(entry_id) > position else delivered
                        found.append(Entry(_text(entry_id), request_id, _traceparent(fields)))
                start = f"({_text(page[-1][0])}"
        return Contents(delivered, upcoming)

    async def length(self) -> int:
        """Return the number of entries in the stream, delivered or not."""
        async with self._outages():
            return int(await self._redis.xlen(self._key))

    async def _position(self) -> tuple[int, int]:
        """Return the id, as a number, of the group's position: its last delivered entry, or where it was set."""
        groups = await self._redis.xinfo_groups(self._key)
        named = (group["last-delivered-id"] for group in groups if _text(group["name"]) == _GROUP)
        return _number(next(named, "0-0"))

    async def _entries(self, raw: Iterable[tuple[Any, Mapping[Any, Any] | None]]) -> list[Entry]:
        """Return the entries that name a request, and remove all others."""
        entries: list[Entry] = []
        others: list[str] = []
        for entry_id, fields in raw:
            if entry_id is None:
                continue
            request_id = _request_id(fields)
            if request_id is None:
                others.append(_text(entry_id))
            else:
                entries.append(Entry(_text(entry_id), request_id, _traceparent(fields)))
        if others:
            structlog.get_logger(__name__).warning("stream.foreign_entries_removed", entries=len(others))
            await self._remove(others)
        return entries

    async def _remove(self, entry_ids: Sequence[str]) -> None:
        async with self._outages():
            for page in _pages(entry_ids):
                async with self._redis.pipeline(transaction=True) as pipeline:
                    # Acknowledging alone leaves the entry in the stream.
                    pipeline.xack(self._key, _GROUP, *page)
                    pipeline.xdel(self._key, *page)
                    await pipeline.execute()

    @asynccontextmanager
    async def _outages(self) -> AsyncIterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            raise refusal(error, self._key) from error


def _group_is_missing(error: ResponseError) -> bool:
    # UNBLOCKED: the stream was deleted under a blocked read.
    return "NOGROUP" in str(error) or "UNBLOCKED" in str(error)


def _only_stream(response: Any) -> list[tuple[Any, Mapping[Any, Any] | None]]:
    """Return the entries of a read of one stream, from RESP 2 (list of pairs) or RESP 3 (mapping to pages)."""
    if not response:
        return []
    if isinstance(response, Mapping):
        return [entry for pages in response.values() for page in pages for entry in page]
    return [entry for _, entries in response for entry in entries]


def _request_id(fields: Mapping[Any, Any] | None) -> UUID | None:
    try:
        return UUID(_text((fields or {})[_FIELD]))
    except (KeyError, ValueError):
        return None


def _traceparent(fields: Mapping[Any, Any] | None) -> str | None:
    value = (fields or {}).get(_TRACE)
    return None if value is None else _text(value)


def _number(entry_id: Any) -> tuple[int, int]:
    """Convert an entry's id to numbers that sort like ids."""
    milliseconds, _, sequence = _text(entry_id).partition("-")
    return int(milliseconds), int(sequence)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _pages(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (items[start : start + _PAGE] for start in range(0, len(items), _PAGE))
