"""The versions of a model that batches, repairs and imports have made."""

from dataclasses import dataclass

from sqlalchemy import Double, Label, cast, null, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from projector.forgetting.status import RepairStatus
from service.db.models import BatchRow, ImportRow, RepairRow


@dataclass(frozen=True)
class MadeVersion:
    """One version that was committed."""

    version: int
    #: How far the repair of its weights has come.
    repair: RepairStatus
    #: As measured from disk; None until then.
    span_residual: float | None
    #: Of the batch's own arithmetic; None for a repair or an import, whose coefficients are computed anew.
    coefficient_residual: float | None


class HistoryRepository:
    """The tables `batches`, `repairs` and `imports`, read as one series of versions."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def latest(self, model: str, *, limit: int) -> list[MadeVersion]:
        """Return up to `limit` versions, the newest first; version 0, as trained, is not among them."""
        batches = select(
            BatchRow.model_version_after.label("version"),
            BatchRow.repair.label("repair"),
            BatchRow.span_residual.label("span_residual"),
            BatchRow.coefficient_residual.label("coefficient_residual"),
        ).where(BatchRow.model == model)
        none: Label[float | None] = cast(null(), Double()).label("coefficient_residual")
        repairs = select(RepairRow.model_version_after, RepairRow.status, RepairRow.span_residual, none).where(
            RepairRow.model == model
        )
        imports = select(ImportRow.version_after, ImportRow.repair, ImportRow.span_residual, none).where(
            ImportRow.model == model, ImportRow.version_after.is_not(None)
        )
        # Each by itself first, so that the end of an index is read and not the whole history.
        newest = [
            select(part.order_by(part.selected_columns[0].desc()).limit(limit).subquery())
            for part in (batches, repairs, imports)
        ]
        made = union_all(*newest).subquery()
        query = select(made).order_by(made.c.version.desc()).limit(limit)
        return [
            MadeVersion(row.version, RepairStatus(row.repair), row.span_residual, row.coefficient_residual)
            for row in await self._conn.execute(query)
        ]
