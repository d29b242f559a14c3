"""Why Postgres does not do what is asked of it, in words for the operator."""

import os
import socket
import ssl
from dataclasses import dataclass

import asyncpg
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service.errors import DatabaseRefused, Unavailable

_SETTING = "DATABASE_URL (or the URL of this process' own login, such as LETHE_API_DATABASE_URL)"
_START = "Start it, and see that DATABASE_URL is right; Lethe goes on by itself when it answers."
_AGAIN = "Try again in a few seconds."
#: Its text is the driver's.
_NO_TLS = "rejected SSL upgrade"


@dataclass(frozen=True)
class _Cause:
    """What goes after "The database cannot be used: it", and what to do."""

    text: str
    remedy: str
    #: Whether it can pass by itself.
    may_pass: bool = True


_LOGIN = _Cause(
    "refuses Lethe's login",
    f"See that user and password are right in {_SETTING}, and that pg_hba.conf lets it in; where TLS is wanted, add "
    "sslmode=require.",
    may_pass=False,
)
_PARAMETER = _Cause(
    "does not take a parameter of the connection",
    f"Remove it from {_SETTING}. PgBouncer and its like refuse what Lethe sets itself: name Postgres' own address.",
    may_pass=False,
)
_TLS = _Cause(
    "cannot be reached with TLS",
    f"See that sslmode and the files of certificates in {_SETTING} are those of this server.",
    may_pass=False,
)
#: By SQLSTATE; the longest beginning counts.
_BY_STATE: dict[str, _Cause] = {
    "08": _Cause("broke the connection off", _START),
    "08P01": _PARAMETER,
    "0A": _PARAMETER,
    "22": _PARAMETER,
    "25006": _Cause(
        "is a standby, which may only be read",
        "Point DATABASE_URL at the primary; where it names several hosts, add target_session_attrs=read-write.",
    ),
    "25P": _Cause("ended a transaction that took too long", _AGAIN),
    "28": _LOGIN,
    "3D": _Cause(
        "has no such database", f"Create it, or correct the name of the database in {_SETTING}.", may_pass=False
    ),
    "40": _Cause("gave way to another transaction", _AGAIN),
    "42": _PARAMETER,
    "42501": _Cause(
        "gives Lethe's login no right to connect",
        "As the database's owner: GRANT CONNECT ON DATABASE to that login, and the role of its process.",
        may_pass=False,
    ),
    "53": _Cause("has no memory or disk left", "See its log, and make room."),
    "53300": _Cause(
        "has no connection left",
        "Close connections that others hold, or raise max_connections (or this login's CONNECTION LIMIT).",
    ),
    "55": _Cause(
        "does not take connections", "Have the database's owner allow them: ALLOW_CONNECTIONS.", may_pass=False
    ),
    "55P03": _Cause("waited too long for a lock", _AGAIN),
    "57": _Cause("ended the connection or a statement", _AGAIN),
    "57P03": _Cause("is starting or stopping", "Wait; Lethe goes on by itself."),
    "58": _Cause("has met an error of its system", "See its log: a disk may be full or failing."),
}


def refusal(error: BaseException, *, while_connecting: bool = False) -> Unavailable:
    """Return the outage that `error` is.

    Its detail names no login, database or address. What Postgres said, which may, is in `said`, for operators alone.
    """
    origin = _origin(error)
    found = _cause(origin)
    # In the middle of work, that something is refused has another reason than how the connection was made.
    kind = Unavailable if found.may_pass or not while_connecting else DatabaseRefused
    refused = kind(f"The database cannot be used: it {found.text}.", found.remedy)
    refused.said = _words(origin)
    return refused


def _origin(error: BaseException) -> BaseException:
    """The driver's error in that of SQLAlchemy."""
    wrapped = getattr(error, "orig", None)
    return getattr(wrapped, "__cause__", None) or wrapped or error


def _cause(error: BaseException) -> _Cause:
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
                f"Turn TLS on in Postgres; or, in a network that you trust, write sslmode=disable into {_SETTING}.",
                may_pass=False,
            )
        case asyncpg.exceptions.ClientConfigurationError():
            return _Cause(
                "cannot be connected to with these settings",
                f"Correct {_SETTING}, or the variable PG….",
                may_pass=False,
            )
        case PoolTimeout():
            return _Cause("has no connection left for this process", _AGAIN)
        case TimeoutError():
            return _Cause("does not answer in time", _START)
        case OSError():
            return _Cause(f"does not answer ({_reason(error)})", _START)
    return _Cause(f"broke the connection off ({type(error).__name__})", _START)


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the name of its host is unknown"
    return os.strerror(error.errno) if error.errno else type(error).__name__


def _words(error: BaseException) -> str:
    """What Postgres or the driver said: the message, without details, which can quote rows."""
    if isinstance(error, asyncpg.PostgresError):
        return str(getattr(error, "message", "") or error)
    return str(error) if isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError) else ""
