"""Which version of each model is committed: the one row that readers and the unlearner agree on."""

from dataclasses import asdict
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.tables import PointerRow
from service.domain.records import Pointer
from service.errors import Conflict, LeaseLost, StateMismatch


class PointerRepository:
    """The table `pointers` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def read(self, model: str) -> Pointer | None:
        """Return the committed version of a model, None when it has none."""
        row = (await self._conn.execute(select(PointerRow.__table__).where(PointerRow.model == model))).one_or_none()
        if row is None:
            return None
        return Pointer(row.model, row.version, row.fencing, row.folder, row.digest, row.weights_sha256)

    async def require_only(self, model: str) -> None:
        """Raises StateMismatch where there is no version of `model`, and there is one of another: they are not known
        to be of the same people.
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
        """Record the first version of a model; raises `Conflict` when it has one."""
        row = insert(PointerRow).values(**asdict(pointer)).on_conflict_do_nothing()
        if await self._conn.scalar(row.returning(PointerRow.model)) is None:
            raise Conflict(
                f"The model {pointer.model} has a committed version.", "Import the new version over it, or rename it."
            )

    async def replace(self, pointer: Pointer) -> None:
        """Make `pointer` the committed version whatever was committed before; for a recovery's fenced transaction.

        The database refuses one that is not later.
        """
        row = insert(PointerRow).values(**asdict(pointer))
        await self._conn.execute(row.on_conflict_do_update(index_elements=[PointerRow.model], set_=_moved(pointer)))

    async def advance(self, expected_version: int, pointer: Pointer) -> None:
        """Move a model from `expected_version` to `pointer`; for a fenced transaction.

        Raises `LeaseLost` when a version was committed under a greater fencing number, `StateMismatch` when the
        committed version is another than expected or there is none.
        """
        moved = (
            update(PointerRow)
            .where(PointerRow.model == pointer.model, PointerRow.version == expected_version)
            .where(PointerRow.fencing <= pointer.fencing)
            .values(_moved(pointer))
        )
        if (await self._conn.execute(moved)).rowcount == 1:
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
    """What a pointer's row says once it has moved; it stays that of its model."""
    return {name: value for name, value in asdict(pointer).items() if name != "model"} | {"moved_at": func.now()}
