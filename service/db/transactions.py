"""Open transactions, distinguish an outage of Postgres from a mistake, and check a lease inside a transaction."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from sqlalchemy import BindParameter, ColumnElement, and_, bindparam, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.db.clock import boottime
from service.db.refusal import refusal
from service.db.tables import LeaseRow
from service.domain.records import Lease
from service.errors import DatabaseDamaged, LeaseLost, LetheError, Unavailable


async def fence(conn: AsyncConnection, lease: Lease) -> None:
    """Keep `lease` from being taken over until the caller's transaction ends; raises `LeaseLost` if it has been."""
    holder = {"lease": lease.name, "lease_holder": lease.holder, "lease_fencing": lease.fencing}
    if await conn.scalar(_FENCE, holder) is None:
        raise lost(lease)


async def wait_for_writers(conn: AsyncConnection, lease: Lease) -> None:
    """Wait until no earlier fenced transaction is still being committed, so that the next read is final.

    For use after an unanswered commit. Raises `LeaseLost` if the lease was taken over, or `Unavailable` from the
    surrounding `transaction` if that commit takes longer than the lock time-out.
    """
    row = select(LeaseRow.fencing).where(held(lease)).with_for_update()
    if await conn.scalar(row) is None:
        raise lost(lease)


def held(lease: Lease) -> ColumnElement[bool]:
    """Return the condition that `lease` is in force."""
    return _in_force(lease.name, lease.holder, lease.fencing)


def _in_force(
    name: str | BindParameter[str], holder: str | BindParameter[str], fencing: int | BindParameter[int]
) -> ColumnElement[bool]:
    return and_(
        LeaseRow.name == name,
        LeaseRow.holder == holder,
        LeaseRow.fencing == fencing,
        LeaseRow.expires_at > func.clock_timestamp(),
    )


#: Built once, because each fenced transaction begins with it.
_FENCE = (
    select(LeaseRow.fencing)
    .where(_in_force(bindparam("lease"), bindparam("lease_holder"), bindparam("lease_fencing")))
    .with_for_update(read=True, key_share=True)
)


def lost(lease: Lease) -> LeaseLost:
    """Return the error for a lost `lease`."""
    return LeaseLost(
        f"The lease on {lease.name} (fencing number {lease.fencing}) ran out or was taken over.",
        "Nothing was written; the holder starts again with a new lease.",
    )


#: SQLSTATE of a missing right.
NO_RIGHT = "42501"
#: SQLSTATE classes that mean "not now": connection, authorisation, no such database yet, deadlock, resources, operator
#: intervention, system error.
_OUTAGE_CLASSES = frozenset({"08", "28", "3D", "40", "53", "57", "58"})
#: Lock time-out, idle time-out, transaction time-out, a read-only standby.
_OUTAGE_STATES = frozenset({"55P03", "25P03", "25P04", "25006"})
#: Lock time-out.
_LOCKED = "55P03"
#: Postgres's context message that names the table of the locked row, if a row was locked.
_LOCKED_TABLE = re.compile(r'relation "(\w+)"')
#: A damaged page or row, an inconsistent index, a missing file.
_DAMAGE_STATES = frozenset({"XX001", "XX002", "58P01"})
#: SQLSTATE class of a COMMIT that did not happen.
_ROLLED_BACK_CLASS = "40"


class CommitUnanswered(Unavailable):
    """The connection broke while Postgres was committing: the transaction may or may not be stored."""

    slug = "commit-unanswered"
    title = "Outcome unknown"


class Locked(Unavailable):
    """The wait for a lock timed out."""


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Yield a connection in a transaction, committed at the end and rolled back on any exception.

    The body does database work only. Raises `Unavailable` if Postgres does not answer (nothing was written),
    `DatabaseRefused` if it refuses the connection, `DatabaseDamaged` if it cannot read its own data, and
    `CommitUnanswered` if it stops answering during the commit.
    """
    connecting, committing = True, False
    try:
        async with engine.connect() as conn:
            connecting = False
            begun = await conn.begin()
            yield conn
            committing = True
            await begun.commit()
    except LetheError:
        raise
    except Exception as error:
        if (damaged := damage(error)) is not None:
            raise damaged from error
        if not (connecting and is_refusal(error)) and not is_outage(error):
            raise
        if committing and not sqlstate(error).startswith(_ROLLED_BACK_CLASS):
            raise CommitUnanswered(
                f"The database stopped answering during a commit ({_name(error)}).",
                "It is unknown whether this was stored. Repeat the request with the same Idempotency-Key.",
            ) from error
        if sqlstate(error) == _LOCKED:
            raise Locked(
                f"Another session of the database holds a lock{_locked_table(error)} and does not release it.",
                "Nothing was stored; try again in a few seconds. If this persists, ask an operator to end that "
                "session: pg_stat_activity shows the oldest transactions.",
            ) from error
        raise refusal(error, while_connecting=connecting) from error


@asynccontextmanager
async def fenced_transaction(engine: AsyncEngine, lease: Lease) -> AsyncIterator[AsyncConnection]:
    """Yield a connection in a transaction that only the holder of `lease` can commit.

    Raises `LeaseLost` if the lease is too near its end by this process's clock, or gone by Postgres's; otherwise like
    `transaction`. While the transaction is open nobody else can acquire the lease.
    """
    if boottime() >= lease.give_up_at:
        raise LeaseLost(
            f"The lease on {lease.name} was not renewed in time.", "Another attempt starts with a new lease."
        )
    async with transaction(engine) as conn:
        await fence(conn, lease)
        yield conn


class Repository:
    """Statements on some tables in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn


def is_outage(error: BaseException) -> bool:
    """Return whether `error` means that Postgres cannot serve now, as opposed to a wrong statement or value.

    `error` is SQLAlchemy's, or asyncpg's own, which SQLAlchemy passes through while it sets up a new connection.
    """
    if isinstance(error, OSError | TimeoutError | PoolTimeout):
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    state = sqlstate(error)
    return state[:2] in _OUTAGE_CLASSES or state in _OUTAGE_STATES or _is_broken_off(error)


def is_refusal(error: BaseException) -> bool:
    """Return whether `error`, raised while connecting, comes from Postgres or the driver."""
    return isinstance(error, DBAPIError | asyncpg.PostgresError | asyncpg.InterfaceError)


def damage(error: BaseException) -> DatabaseDamaged | None:
    """Return the damage that `error` reports, in Postgres's words, which name files and indexes; else None.

    `error` is as for `is_outage`.
    """
    state = sqlstate(error)
    if state not in _DAMAGE_STATES:
        return None
    said = getattr(error, "orig", None)
    return DatabaseDamaged(f"{getattr(said, '__cause__', None) or said or error} (SQLSTATE {state})")


def _is_broken_off(error: BaseException) -> bool:
    """Return whether asyncpg refuses a connection that is ending or has ended."""
    if isinstance(error, DBAPIError):
        return isinstance(getattr(error.orig, "__cause__", None), asyncpg.InternalClientError)
    # The classes below InterfaceError are about wrong values and settings.
    return isinstance(error, asyncpg.InternalClientError) or type(error) is asyncpg.InterfaceError


def sqlstate(error: BaseException) -> str:
    """Return the SQLSTATE of SQLAlchemy's or asyncpg's error, or an empty string."""
    state = getattr(getattr(error, "orig", error), "sqlstate", None)
    return state if isinstance(state, str) else ""


def _locked_table(error: BaseException) -> str:
    """Return a phrase naming the table of the locked row; empty if Postgres does not name it."""
    cause = getattr(getattr(error, "orig", error), "__cause__", None) or error
    found = _LOCKED_TABLE.search(str(getattr(cause, "context", None) or ""))
    return f" on the table `{found[1]}`" if found else ""


def _name(error: BaseException) -> str:
    cause = getattr(error, "orig", None)
    return type(getattr(cause, "__cause__", None) or cause or error).__name__
