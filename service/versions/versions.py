"""The versions of a model: one row for each that was committed, whatever made it."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Computed, ForeignKey, Row, func, insert, literal, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql import FromClause

from projector.forgetting.status import RepairStatus
from service.db.base import Base, holds
from service.domain.figures import RepairFigures, VersionFigures
from service.domain.states import Cause
from service.domain.versions import Version


@holds(VersionFigures, RepairFigures)
class VersionRow(Base):
    """A version that was committed; `finished_at` is when nothing older was on the disk any more."""

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
    repair: Mapped[str]
    repair_version: Mapped[int | None] = mapped_column(BigInteger)
    repair_products: Mapped[int | None]
    #: What holds of its own weights, for whoever reads the table.
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
    """The columns that `version_in` reads, of the table or of an alias of it."""
    return tuple(versions.c[name] for name in _NAMES)


def version_in(row: Row[*tuple[Any, ...]], versions: FromClause = _VERSIONS) -> Version:
    """The version in a row of `version_columns` and possibly more."""
    # By column: other tables in the row have columns of the same names.
    found = row._mapping
    values = {name: found[versions.c[name]] for name in _NAMES}
    return Version(**values | {"cause": Cause(values["cause"]), "repair": RepairStatus(values["repair"])})


def joined_version_in(row: Row[*tuple[Any, ...]], versions: FromClause = _VERSIONS) -> Version | None:
    """The same, or None where an outer join found none."""
    return None if row._mapping[versions.c.id] is None else version_in(row, versions)


class VersionRepository:
    """The table `versions` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def insert(self, version: Version) -> None:
        """Record a version; for the fenced transaction that moves the pointer to it."""
        values = {name: getattr(version, name) for name in _NAMES}
        await self._conn.execute(insert(VersionRow).values(values | {"durations_ms": dict(version.durations_ms)}))

    async def finish(self, version_id: UUID, *, span_residual: float, durations_ms: Mapping[str, float]) -> bool:
        """Record that nothing older is on the disk, with the residual measured there; False when it was before."""
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
        """Return the versions that a crash may have left between commit and end, oldest first.

        At most one of them is no recovery.
        """
        query = select(*version_columns()).where(VersionRow.model == model, VersionRow.finished_at.is_(None))
        return await self._all(query.order_by(VersionRow.number))

    async def latest(self, model: str, *, limit: int) -> list[Version]:
        """Return up to `limit` versions, the newest first; version 0, as trained, is not among them."""
        query = select(*version_columns()).where(VersionRow.model == model)
        return await self._all(query.order_by(VersionRow.number.desc()).limit(limit))

    async def _all(self, query: Any) -> list[Version]:
        return [version_in(row) for row in await self._conn.execute(query)]
