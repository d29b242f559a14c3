"""The versions of a model in the database: a row for each, the committed one, and the details of batches."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Computed,
    ForeignKey,
    Row,
    Select,
    Uuid,
    bindparam,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql import FromClause

from projector.forgetting.status import RepairStatus
from service.db.rows import NORM_COLUMNS, QUEUED_COLUMNS, any_given, given, given_rows, queued_request, request_norms
from service.db.tables import Base, PointerRow, RequestAuditRow, RequestRow, holds
from service.db.transactions import Repository
from service.domain.figures import BatchDetails, RepairFigures, RequestNorms, VersionFigures
from service.domain.records import BatchRecord, Pointer, QueuedRequest
from service.domain.states import Cause, RequestStatus
from service.domain.versions import Drift, Version, batch_record
from service.errors import Conflict, LeaseLost, StateMismatch


@holds(VersionFigures, RepairFigures, Drift)
class VersionRow(Base):
    """A committed version; `finished_at` is when no older data was left on the disk."""

    __tablename__ = "versions"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(ForeignKey("pointers.model"))
    number: Mapped[int] = mapped_column(BigInteger)
    fencing: Mapped[int] = mapped_column(BigInteger)
    cause: Mapped[str]
    folder: Mapped[str]
    digest: Mapped[str]
    weights_sha256: Mapped[str]
    number_before: Mapped[int] = mapped_column(BigInteger)
    weights_sha256_before: Mapped[str]
    rank: Mapped[int]
    live_nodes: Mapped[int]
    edges: Mapped[int]
    device: Mapped[str]
    durations_ms: Mapped[dict[str, float]] = mapped_column(JSONB)
    requests: Mapped[int]
    deleted_nodes: Mapped[int]
    deleted_features: Mapped[int]
    deleted_edges: Mapped[int]
    deleted_labels: Mapped[int]
    repair: Mapped[str]
    repair_version: Mapped[int | None] = mapped_column(BigInteger)
    repair_products: Mapped[int | None]
    #: The guarantee of its own weights, for readers of the table.
    guarantee: Mapped[str] = mapped_column(
        Computed(
            "CASE WHEN repair = 'converged' AND repair_version = number THEN 'retrained' ELSE 'span' END",
            persisted=True,
        )
    )
    committed_at: Mapped[datetime] = mapped_column(server_default=func.now())
    finished_at: Mapped[datetime | None]


_VERSIONS = VersionRow.__table__
_NAMES = tuple(field.name for field in fields(Version))


def version_columns(versions: FromClause = _VERSIONS) -> tuple[Any, ...]:
    """Return the columns that `version_in` reads, of the table or an alias of it."""
    return tuple(versions.c[name] for name in _NAMES)


def version_in(row: Row[*tuple[Any, ...]], versions: FromClause = _VERSIONS) -> Version:
    """Build the version from a row of `version_columns` and possibly more."""
    # By column: other tables in the row have columns with the same names.
    found = row._mapping
    values = {name: found[versions.c[name]] for name in _NAMES}
    return Version(**values | {"cause": Cause(values["cause"]), "repair": RepairStatus(values["repair"])})


def joined_version_in(row: Row[*tuple[Any, ...]], versions: FromClause = _VERSIONS) -> Version | None:
    """Build the version like `version_in`, or return None if an outer join found none."""
    return None if row._mapping[versions.c.id] is None else version_in(row, versions)


class VersionRepository(Repository):
    """The table `versions` in the caller's transaction."""

    async def insert(self, version: Version) -> None:
        """Record a version; call in the fenced transaction that moves the pointer to it."""
        values = {name: getattr(version, name) for name in _NAMES}
        # As parameters: the statement is the same each time.
        await self._conn.execute(insert(VersionRow), values | {"durations_ms": dict(version.durations_ms)})

    async def finish(self, version_id: UUID, *, span_residual: float, durations_ms: Mapping[str, float]) -> bool:
        """Record that no older data is on the disk, with the residual measured there; False if recorded before."""
        finished = (
            update(VersionRow)
            .where(VersionRow.id == version_id, VersionRow.finished_at.is_(None))
            .values(
                finished_at=func.now(),
                span_residual=span_residual,
                durations_ms=VersionRow.durations_ms.op("||")(literal(dict(durations_ms), JSONB())),
            )
        )
        return (await self._conn.execute(finished)).rowcount == 1

    async def unfinished(self, model: str) -> list[Version]:
        """Return the versions that a crash may have left unfinished after their commit, oldest first.

        At most one of them is not a recovery.
        """
        query = select(*version_columns()).where(VersionRow.model == model, VersionRow.finished_at.is_(None))
        return await self._all(query.order_by(VersionRow.number))

    async def latest(self, model: str, *, limit: int) -> list[Version]:
        """Return up to `limit` versions, newest first, without version 0 as trained."""
        query = select(*version_columns()).where(VersionRow.model == model)
        return await self._all(query.order_by(VersionRow.number.desc()).limit(limit))

    async def _all(self, query: Any) -> list[Version]:
        return [version_in(row) for row in await self._conn.execute(query)]


_NOW = {"moved_at": func.now()}
#: Built once, like all statements that a deletion waits for.
_ADVANCE = (
    update(PointerRow)
    .where(PointerRow.model == bindparam("of"), PointerRow.version == bindparam("expected"))
    .where(PointerRow.fencing <= bindparam("own"))
    .values(_NOW)
)


class PointerRepository(Repository):
    """The table `pointers` in the caller's transaction."""

    async def read(self, model: str) -> Pointer | None:
        """Return the committed version of a model, or None."""
        row = (await self._conn.execute(select(PointerRow.__table__).where(PointerRow.model == model))).one_or_none()
        if row is None:
            return None
        return Pointer(row.model, row.version, row.fencing, row.folder, row.digest, row.weights_sha256)

    async def all(self) -> list[Pointer]:
        """Return the committed version of each model, by name."""
        query = select(PointerRow.__table__).order_by(PointerRow.model)
        return [
            Pointer(row.model, row.version, row.fencing, row.folder, row.digest, row.weights_sha256)
            for row in await self._conn.execute(query)
        ]

    async def require_only(self, model: str) -> None:
        """Raise StateMismatch if other models have versions and `model` has none.

        The two are not known to contain the same people.
        """
        served = list((await self._conn.execute(select(PointerRow.model).order_by(PointerRow.model))).scalars())
        if served and model not in served:
            raise StateMismatch(
                f"The database has served the model {served[0]!r}, but the folder contains one named {model!r}: "
                "deletions from one are unknown to the other.",
                "Set DATABASE_URL and LETHE_MODEL to a matching pair. A newly trained replacement must have the "
                f"same name: train it with `--name {served[0]}`, then run `./lethe recover`.",
            )

    async def create(self, pointer: Pointer) -> None:
        """Record the first version of a model; raises `Conflict` if it has one."""
        row = upsert(PointerRow).values(**asdict(pointer)).on_conflict_do_nothing()
        if await self._conn.scalar(row.returning(PointerRow.model)) is None:
            raise Conflict(
                f"The model {pointer.model} has a committed version.", "Import the new version over it, or rename it."
            )

    async def replace(self, pointer: Pointer) -> None:
        """Commit `pointer` regardless of the present version; for a recovery's fenced transaction.

        The database refuses a version that is not later.
        """
        row, moved = upsert(PointerRow).values(**asdict(pointer)), _moved(pointer) | _NOW
        await self._conn.execute(row.on_conflict_do_update(index_elements=[PointerRow.model], set_=moved))

    async def advance(self, expected_version: int, pointer: Pointer) -> None:
        """Move a model from `expected_version` to `pointer`; for a fenced transaction.

        Raises `LeaseLost` if a version was committed under a greater fencing number, `StateMismatch` if the committed
        version is missing or differs from the expected one.
        """
        conditions = {"of": pointer.model, "expected": expected_version, "own": pointer.fencing}
        if (await self._conn.execute(_ADVANCE, conditions | _moved(pointer))).rowcount == 1:
            return
        found = await self.read(pointer.model)
        if found is not None and found.fencing > pointer.fencing:
            raise LeaseLost(
                f"{pointer.model} version {found.version} was written under fencing number {found.fencing}, later than"
                f" {pointer.fencing}.",
                "Nothing was written; the holder starts again with a new lease.",
            )
        committed = "no version" if found is None else f"version {found.version}"
        raise StateMismatch(
            f"The database has {committed} of {pointer.model} committed, not version {expected_version}.",
            "Restart Lethe; if it refuses to start, restore database and store from the same backup.",
        )


def _moved(pointer: Pointer) -> dict[str, Any]:
    """Return the new values of a pointer's row; the model stays."""
    return {name: value for name, value in asdict(pointer).items() if name != "model"}


@holds(BatchDetails)
class BatchRow(Base):
    """Measurements of a version whose cause is a batch."""

    __tablename__ = "batches"

    id: Mapped[UUID] = mapped_column(ForeignKey("versions.id"), primary_key=True)


_BATCHES = BatchRow.__table__
_DETAILS = tuple(field.name for field in fields(BatchDetails))
#: The version in which the repair of a batch ended.
_ENDED = VersionRow.__table__.alias("ended")
#: The columns that `batch_in` reads.
BATCH_COLUMNS = (*version_columns(), *(_BATCHES.c[name] for name in _DETAILS), *version_columns(_ENDED))


def with_batch(query: Select[Any], batch_id: Any, *, isouter: bool = False) -> Select[Any]:
    """Join `query` with the tables of `BATCH_COLUMNS`, for the batch whose id is in the column `batch_id`."""
    ended = (_ENDED.c.model == VersionRow.model) & (_ENDED.c.number == VersionRow.repair_version)
    query = query.join(VersionRow, VersionRow.id == batch_id, isouter=isouter)
    return query.join(BatchRow, BatchRow.id == VersionRow.id, isouter=isouter).join(_ENDED, ended, isouter=True)


def batch_in(row: Row[*tuple[Any, ...]]) -> BatchRecord:
    """Build the batch from a row of `BATCH_COLUMNS` and possibly more."""
    return batch_record(version_in(row), _details(row), joined_version_in(row, _ENDED))


def _details(row: Row[*tuple[Any, ...]]) -> BatchDetails:
    return BatchDetails(**{name: row._mapping[_BATCHES.c[name]] for name in _DETAILS})


class RequestsWithdrawn(Conflict):
    """Requests of a batch were cancelled, held, or taken by another batch, while it was computed."""

    def __init__(self, ids: Collection[UUID]) -> None:
        super().__init__(
            f"{len(ids)} requests of the batch are not queued any more.",
            "Roll back and compute the batch without them.",
        )
        self.ids = frozenset(ids)


@dataclass(frozen=True)
class Batch:
    """A batch with a committed version, and the data that the remaining steps need."""

    details: BatchDetails
    #: Its requests, and the norms measured for each.
    requests: Mapping[UUID, QueuedRequest]
    norms: Mapping[UUID, RequestNorms]


def _insert_batch() -> Select[UUID]:
    """Build the statement of `BatchRepository.insert`: one, since each is a round trip that the requests wait for."""
    version = bindparam("version", type_=Uuid())
    details: dict[str, Any] = {name: bindparam(f"batch_{name}") for name in _DETAILS}
    batch = insert(BatchRow).values(id=version, **details).cte("batch")
    rows = given_rows("measured", request_id=Uuid(), **{column.key: column.type for column in NORM_COLUMNS})
    joins = update(RequestRow).where(RequestRow.id == any_given("measured_request_id"))
    joins = joins.where(RequestRow.model == bindparam("of"), RequestRow.status == RequestStatus.QUEUED)
    joins = joins.where(RequestRow.batch_id.is_(None), RequestRow.held_at.is_(None), RequestRow.waits_for.is_(None))
    joined = joins.values(batch_id=version).returning(RequestRow.id).cte("joined")
    audits = select(version, *rows.c).join_from(rows, joined, joined.c.id == rows.c.request_id)
    audited = insert(RequestAuditRow).from_select(["batch_id", *rows.c.keys()], audits).cte("audited")
    return select(joined.c.id).add_cte(batch, audited)


_INSERT_BATCH = _insert_batch()


class BatchRepository(Repository):
    """The tables `batches` and `request_audits` in the caller's transaction."""

    async def insert(self, version: Version, details: BatchDetails, norms: Mapping[UUID, RequestNorms]) -> None:
        """Record the details of a version recorded just before, add its requests and store their norms.

        Raises `RequestsWithdrawn` if a request is no longer queued: the caller's transaction must roll back.
        """
        measured = {column.key: [getattr(one, column.key) for one in norms.values()] for column in NORM_COLUMNS}
        values = {
            "version": version.id,
            "of": version.model,
            **{f"batch_{name}": value for name, value in vars(details).items()},
            **given("measured", request_id=list(norms), **measured),
        }
        found = set((await self._conn.execute(_INSERT_BATCH, values)).scalars())
        if withdrawn := norms.keys() - found:
            raise RequestsWithdrawn(withdrawn)

    async def details(self, batch_id: UUID) -> BatchDetails:
        """Return the measurements of a recorded batch."""
        return _details((await self._conn.execute(select(_BATCHES).where(BatchRow.id == batch_id))).one())

    async def newest_residuals(self, model: str) -> tuple[Version | None, float | None]:
        """Return the newest version with a measured span residual, and the newest version's coefficient residual.

        The version is None before any measurement, the residual if the newest version is not a batch.
        """
        # Two, because the newest may not have been measured yet.
        made = await VersionRepository(self._conn).latest(model, limit=2)
        coefficient = None
        if made and made[0].cause is Cause.BATCH:
            coefficient = (await self.details(made[0].id)).coefficient_residual
        return next((one for one in made if one.span_residual is not None), None), coefficient

    async def get(self, batch_id: UUID) -> Batch:
        """Return a recorded batch, its requests oldest first."""
        taken = select(*QUEUED_COLUMNS).where(RequestRow.batch_id == batch_id)
        taken = taken.order_by(RequestRow.received_at, RequestRow.id)
        requests = [queued_request(row) for row in await self._conn.execute(taken)]
        audits = select(RequestAuditRow.request_id, *NORM_COLUMNS).where(RequestAuditRow.batch_id == batch_id)
        norms = {row.request_id: request_norms(row) for row in await self._conn.execute(audits)}
        return Batch(await self.details(batch_id), {request.id: request for request in requests}, norms)

    async def newest_duration_s(self, model: str, *, repair_budget_s: float) -> float:
        """Return the duration (seconds) of a model's newest batch, its repair capped at the budget; 0 without one."""
        query = select(VersionRow.durations_ms).where(VersionRow.model == model, VersionRow.cause == Cause.BATCH)
        query = query.where(VersionRow.finished_at.is_not(None)).order_by(VersionRow.number.desc()).limit(1)
        durations = await self._conn.scalar(query) or {}
        beyond = max(0.0, durations.get("repair", 0.0) - 1000 * repair_budget_s)
        return (sum(durations.values()) - beyond) / 1000
