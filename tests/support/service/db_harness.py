"""A migrated database with one model and one API key, and a proxy that loses connections at chosen moments."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from uuid import UUID, uuid4

from sqlalchemy import make_url, text

from projector.forgetting.status import RepairStatus
from service.access.api_keys import ApiKeyRepository
from service.access.keyring import Keyring
from service.access.own_slots import OwnSlots
from service.access.request_keys import RequestKeys
from service.db.engine import Connection, Engine, create_engine
from service.db.transactions import transaction
from service.domain.figures import BatchDetails, RequestNorms
from service.domain.kinds import RequestKind
from service.domain.records import KeySlot, Pointer, Targets
from service.domain.scopes import Scope
from service.domain.states import Cause, EventType, Guarantee
from service.domain.versions import Version
from service.log.events import EventRepository
from service.log.leaves import ModelImported, Payload
from service.predictions.version_rows import BatchRepository, PointerRepository, VersionRepository
from service.requests.intake import Accepted, Intake, NewRequest
from service.requests.moves import AppliedOutcome, RequestMoves
from service.unlearner.causes import ImportRepository

MODEL = "tiny"
POINTER = Pointer(MODEL, 0, 0, "0-0", "a" * 64, "b" * 64)
NORMS = RequestNorms(1, 0.25, 0.0, None, None)
DETAILS = BatchDetails(
    rank_before=10,
    weight_change=0.1,
    coefficient_residual=1e-14,
    lost_direction_norm_before=0.5,
    lost_direction_norm_after=1e-16,
    factor_method="downdate",
    distance_bound_start_relative=None,
)


@dataclass
class Database:
    """An engine on a migrated database, with its key folder."""

    url: str
    engine: Engine
    slots: OwnSlots
    keyring: Keyring
    intake: Intake
    api_key_id: UUID

    @property
    def keys(self) -> RequestKeys:
        """The request keys of all processes."""
        return RequestKeys(self.slots.folder)

    def kept(self) -> dict[UUID, KeySlot]:
        """Return the requests that have keys, and their slots."""
        return {request_id: slot for page in self.keys.held() for request_id, slot in page.items()}

    async def rows(self, statement: str, **values: object) -> list[dict[str, Any]]:
        """Run one statement and return its rows."""
        async with self.engine.begin() as conn:
            result = await conn.execute(text(statement), values)
            return [dict(row) for row in result.mappings()] if result.returns_rows else []

    async def value(self, statement: str, **values: object) -> Any:
        """Return the single value of a statement."""
        [row] = await self.rows(statement, **values)
        [found] = row.values()
        return found

    def new(self, *nodes: str, key: str | None = None, digest: bytes = bytes(32), model: str = MODEL) -> NewRequest:
        """Return a node request with recognisable salts."""
        salts = {node: node.encode("utf-8", "surrogatepass").hex() for node in nodes}
        targets = Targets(nodes=nodes, node_salts=salts, reference_salt="5a17")
        return NewRequest(
            model=model,
            kind=RequestKind.NODE,
            targets=targets,
            reference="DSR-17",
            api_key_id=self.api_key_id,
            idempotency_key=key,
            body_digest=None if key is None else digest,
        )

    async def accept(self, *nodes: str) -> UUID:
        """Queue a request for `nodes` and return its id."""
        return (await self.intake.accept(self.new(*(nodes or ("1",))))).request.id

    async def accept_each(self, count: int) -> list[UUID]:
        """Queue `count` requests for one node each, and return their ids."""
        return [await self.accept(str(number)) for number in range(count)]

    async def batch(self, ids: Collection[UUID], version: int = 1) -> UUID:
        """Record a batch of `ids` and return its id."""
        record = made(version, requests=len(ids), deleted_nodes=len(ids))
        async with transaction(self.engine) as conn:
            await committed(conn, record, dict.fromkeys(ids, NORMS))
        return record.id

    async def applied(self, ids: Sequence[UUID], version: int = 1) -> UUID:
        """Record a batch in which `ids` were applied, and return its id."""
        batch_id = await self.batch(ids, version)
        async with transaction(self.engine) as conn:
            await RequestMoves(conn).mark_applied(batch_id, [outcome(request_id) for request_id in ids])
        return batch_id


@asynccontextmanager
async def open_database(url: str, folder: Path, *, max_queued_nodes: int | None = None) -> AsyncIterator[Database]:
    """Put a model and an API key into the migrated, empty database at `url`."""
    async with AsyncExitStack() as stack:
        engine = create_engine(url)
        stack.push_async_callback(engine.dispose)
        slots = stack.enter_context(OwnSlots.open(folder / "keys" / "requests"))
        keyring = Keyring.open(folder / "keys")
        intake = Intake(engine, slots, keyring, max_queued_nodes=max_queued_nodes)
        stack.push_async_callback(intake.close)
        api_key_id = uuid4()
        async with transaction(engine) as conn:
            await PointerRepository(conn).create(POINTER)
            await ApiKeyRepository(conn).create(api_key_id, "tests", list(Scope), bytes(32))
        yield Database(url, engine, slots, keyring, intake, api_key_id)


def made(number: int = 1, **changes: Any) -> Version:
    """Return the record of a batch that made version `number`; `changes` set the fields of another cause."""
    version = Version(
        id=uuid4(),
        model=MODEL,
        number=number,
        fencing=1,
        cause=Cause.BATCH,
        folder=f"{number}-1",
        digest="e" * 64,
        weights_sha256="d" * 64,
        number_before=number - 1,
        weights_sha256_before="c" * 64,
        rank=9,
        live_nodes=58,
        edges=120,
        device="cpu",
        durations_ms={"project": 1.9},
        requests=1,
        deleted_nodes=1,
        directions_removed=1,
    )
    return replace(version, **changes)


async def committed(conn: Connection, version: Version, norms: Mapping[UUID, RequestNorms]) -> None:
    """Record a batch of the requests in `norms`, as the commit of its version does."""
    await VersionRepository(conn).insert(version)
    await BatchRepository(conn).insert(version, DETAILS, norms)


async def imported(conn: Connection, version: Version) -> None:
    """Record an import that became `version`."""
    await ImportRepository(conn).ask(version.id, version.model, exclude_deleted=True)
    await VersionRepository(conn).insert(version)
    await ImportRepository(conn).commit(version.id)
    await EventRepository(conn).append_unrequested(EventType.IMPORTED, ModelImported(version))


class Said:
    """Event content with these members."""

    def __init__(self, **members: object) -> None:
        self._members = members

    def document(self) -> Payload:
        return self._members


def outcome(request_id: UUID) -> AppliedOutcome:
    """Return the outcome of a request applied with the paper's guarantee."""
    return AppliedOutcome(request_id, Guarantee.SPAN, RepairStatus.NONE, "One direction was removed.", Said(n=1))


def next_pointer(pointer: Pointer, fencing: int) -> Pointer:
    """Return the pointer of the next version."""
    version = pointer.version + 1
    return replace(pointer, version=version, fencing=fencing, folder=f"{version}-{fencing}")


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Poll until `condition` holds, ever less often, since polling slows the awaited work."""
    pause_s = 0.01
    async with asyncio.timeout(120):
        while not await condition():
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, 0.1)


async def is_waiting(database: Database, for_what: str = "Lock") -> bool:
    """Whether a connection to the database waits for a lock."""
    return bool(
        await database.value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = :kind",
            kind=for_what,
        )
    )


class Proxy:
    """A proxy between a client and Postgres that loses the connection at the next COMMIT, on demand.

    `statement` selects another statement.
    """

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self._target = (parsed.host or "", parsed.port or 0)
        self._parsed = parsed
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        #: Action at the next COMMIT: `lose` it, `deliver` it and lose the answer, or `delay` it until released.
        self.at_commit: str | None = None
        self.statement = b"COMMIT"
        self.release = asyncio.Event()
        self.struck = asyncio.Event()

    @property
    def url(self) -> str:
        """The database's URL through the proxy."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return self._parsed.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        from_postgres, to_postgres = await asyncio.open_connection(*self._target)
        answers = asyncio.create_task(_pump(from_postgres, writer))
        try:
            while data := await reader.read(65536):
                if self.at_commit is not None and self.statement in data:
                    await self._strike(data, to_postgres, answers, writer)
                    return
                to_postgres.write(data)
        except (ConnectionError, asyncio.CancelledError):
            return
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)
            writer.close()
            to_postgres.close()

    async def _strike(
        self,
        data: bytes,
        to_postgres: asyncio.StreamWriter,
        answers: "asyncio.Task[None]",
        client: asyncio.StreamWriter,
    ) -> None:
        action, self.at_commit = self.at_commit, None
        answers.cancel()
        await asyncio.gather(answers, return_exceptions=True)
        client.transport.abort()
        self.struck.set()
        if action == "delay":
            await self.release.wait()
        if action != "lose":
            to_postgres.write(data)
            await to_postgres.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


def accepted_ids(answers: Collection[Accepted]) -> set[UUID]:
    """Return the ids of accepted requests."""
    return {answer.request.id for answer in answers}
