"""Causes and remedies of Postgres errors for the operator, and detection of damaged pages."""

import os
import socket
import ssl
from dataclasses import dataclass

import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import DatabaseDamaged, DatabaseRefused, Unavailable

_SETTING = "DATABASE_URL (or this process's own URL, such as LETHE_API_DATABASE_URL)"
_START = "Start it, and check DATABASE_URL. Lethe continues by itself once it answers."
_AGAIN = "Try again in a few seconds."
#: The driver's message.
_NO_TLS = "rejected SSL upgrade"


@dataclass(frozen=True)
class _Cause:
    """A cause, as the end of "The database cannot be used: it …", and its remedy."""

    text: str
    remedy: str
    #: Whether it can end without any action.
    may_pass: bool = True


_LOGIN = _Cause(
    "refuses Lethe's login",
    f"Check user and password in {_SETTING}, and that pg_hba.conf allows the login. If the server requires TLS, add "
    "sslmode=require.",
    may_pass=False,
)
_PARAMETER = _Cause(
    "rejects a connection parameter",
    f"Remove it from {_SETTING}.",
    may_pass=False,
)
_POOLER = _Cause(
    "is reached through a connection pooler such as PgBouncer, which refuses the settings of a session",
    f"Name Postgres itself in {_SETTING}. Lethe needs sessions of its own, for LISTEN and for time limits.",
    may_pass=False,
)
#: PgBouncer's message.
_NO_SETTINGS = "unsupported startup parameter"
_TLS = _Cause(
    "cannot be reached with TLS",
    f"Make sure that sslmode and the certificate files in {_SETTING} are right for this server.",
    may_pass=False,
)
#: By SQLSTATE; the longest prefix wins.
_BY_STATE: dict[str, _Cause] = {
    "08": _Cause("closed the connection", _START),
    "08P01": _PARAMETER,
    "0A": _PARAMETER,
    "22": _PARAMETER,
    "25006": _Cause(
        "is a read-only standby",
        "Point DATABASE_URL at the primary; if it names several hosts, add target_session_attrs=read-write.",
    ),
    "25P": _Cause("ended a transaction that took too long", _AGAIN),
    "28": _LOGIN,
    "3D": _Cause(
        "has no such database", f"Create it, or correct the name of the database in {_SETTING}.", may_pass=False
    ),
    "40": _Cause("rolled back a transaction that conflicted with another", _AGAIN),
    "42": _PARAMETER,
    "42501": _Cause(
        "does not allow Lethe's login to connect",
        "As the database's owner, GRANT CONNECT ON DATABASE to that login, and grant it the role of its process.",
        may_pass=False,
    ),
    "53": _Cause("has no memory or disk space left", "Check its log, and free some of it."),
    "53300": _Cause(
        "has no connection left",
        "Close other connections, or raise max_connections (or this login's CONNECTION LIMIT).",
    ),
    "55": _Cause("does not accept connections", "Have the database's owner set ALLOW_CONNECTIONS.", may_pass=False),
    "55P03": _Cause("waited too long for a lock", _AGAIN),
    "57": _Cause("ended the connection or a statement", _AGAIN),
    "57P03": _Cause("is starting or stopping", "Wait; Lethe continues by itself."),
    "58": _Cause("reported a system error", "Check its log: a disk may be full or failing."),
}


def refusal(error: BaseException, *, while_connecting: bool = False) -> Unavailable:
    """Convert `error` to an outage.

    Its detail names no login, database or address. Postgres's own message may; it is in `server_message`, for operators
    only.
    """
    origin = _origin(error)
    found = _cause(origin)
    # A refusal during work has nothing to do with how the connection was made.
    kind = Unavailable if found.may_pass or not while_connecting else DatabaseRefused
    refused = kind(f"The database cannot be used: it {found.text}.", found.remedy)
    refused.server_message = _words(origin)
    return refused


def _origin(error: BaseException) -> BaseException:
    """Return the driver's error inside SQLAlchemy's."""
    wrapped = getattr(error, "orig", None)
    return getattr(wrapped, "__cause__", None) or wrapped or error


def _cause(error: BaseException) -> _Cause:
    if _NO_SETTINGS in str(error):
        return _POOLER
    state = getattr(error, "sqlstate", None) or ""
    for length in (5, 3, 2):
        if state and state[:length] in _BY_STATE:
            return _BY_STATE[state[:length]]
    match error:
        case ssl.SSLError():
            return _TLS
        case ConnectionError() if _NO_TLS in str(error):
            return _Cause(
                "does not speak TLS",
                f"Turn TLS on in Postgres. In a network that you trust, set sslmode=disable in {_SETTING} instead.",
                may_pass=False,
            )
        case asyncpg.exceptions.ClientConfigurationError():
            return _Cause(
                "cannot be connected to with these settings",
                f"Correct {_SETTING}, or the PG… variables.",
                may_pass=False,
            )
        case PoolTimeout():
            return _Cause("has no connection left for this process", _AGAIN)
        case TimeoutError():
            return _Cause("does not answer in time", _START)
        case OSError():
            return _Cause(f"does not answer ({_reason(error)})", _START)
    return _Cause(f"closed the connection ({type(error).__name__})", _START)


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the name of its host is unknown"
    return os.strerror(error.errno) if error.errno else type(error).__name__


def _words(error: BaseException) -> str:
    """Return the message of Postgres or the driver, without its detail field, which can quote rows."""
    if isinstance(error, asyncpg.PostgresError):
        return str(getattr(error, "message", "") or error)
    return str(error) if isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError) else ""


#: In this database and the shared catalogs, since Postgres started: after a restore and restart the count is zero.
_MET = text("""
    SELECT sum(checksum_failures) AS pages, max(checksum_last_failure) AS last FROM pg_stat_database
    WHERE (datname = current_database() OR datid = 0) AND checksum_last_failure >= pg_postmaster_start_time()
""")


async def damage_met(connection: AsyncConnection) -> DatabaseDamaged | None:
    """Return the damage found since Postgres started; None if every page read matched its checksum."""
    met = (await connection.execute(_MET)).one()
    if not met.pages:
        return None
    return DatabaseDamaged(
        f"{met.pages} reads since Postgres started found a page with a wrong checksum, the last at "
        f"{met.last:%Y-%m-%d %H:%M:%S} UTC; Postgres' log names the file"
    )
