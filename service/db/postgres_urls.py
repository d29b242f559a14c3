"""Read Postgres URLs in libpq's syntax: each parameter is used, or refused by name."""

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.domain.url_parameters import (
    credentials,
    decoded,
    host,
    load_own,
    load_roots,
    number,
    one_of,
    port,
    query,
    split,
)

#: A setting that is there only if nothing between Lethe and Postgres drops the settings of a session.
OWN_SESSION = {"lethe.session": "own"}
SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg")
#: Server settings of each connection. A holder that stops inside a transaction is disconnected, so that it cannot keep
#: the lease's row locked. `jit` costs more than it gains on statements this short. The data is in memory or on flash,
#: where a random page costs as much as a sequential one.
SESSION_SETTINGS = {
    "application_name": "lethe",
    # Reads after waiting for a lock must see what was committed meanwhile.
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "15s",
    "lock_timeout": "20s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "timezone": "UTC",
    "jit": "off",
    "random_page_cost": "1.1",
    **OWN_SESSION,
}
#: Server settings that only Lethe sets.
OWN_SETTINGS = frozenset({*SESSION_SETTINGS, "transaction_timeout", "role"}) - {"application_name"}
#: Server settings that a URL may name directly, though libpq requires them in `options`.
_SERVER_SETTINGS = ("application_name", "options", "statement_timeout", "idle_session_timeout", "search_path")
_WEAK_MODES, _STRONG_MODES = ("disable", "allow", "prefer"), ("require", "verify-ca", "verify-full")
#: Also read from `PG…` environment variables.
_TLS = (
    "sslrootcert",
    "sslcert",
    "sslkey",
    "sslpassword",
    "sslcrl",
    "ssl_min_protocol_version",
    "ssl_max_protocol_version",
)
_TLS_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_USED = (
    *("host", "port", "dbname", "user", "password", "passfile", "connect_timeout", "fallback_application_name"),
    *("sslmode", "ssl", "sslnegotiation", "target_session_attrs"),
    *_TLS,
    *_SERVER_SETTINGS,
)
#: Parameters with a fixed behaviour: the values that match it, and why others are refused.
_FIXED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "channel_binding": (
        ("prefer", "disable"),
        "the driver cannot bind channels; leave it out and use sslmode=verify-full, which stops the same attacker",
    ),
    "gssencmode": (("prefer", "disable"), "the driver cannot encrypt with GSSAPI"),
    "client_encoding": (("UTF8", "utf8", "UTF-8", "utf-8"), "Lethe writes UTF-8"),
    "keepalives": (("1",), "Lethe keeps connections alive"),
    "load_balance_hosts": (("disable",), "hosts are tried in order"),
    "max_protocol_version": (("3.0", "3.2", "latest"), "the driver speaks 3.0"),
    "min_protocol_version": (("3.0",), "the driver speaks 3.0"),
    "pgbouncer": (("false",), "Lethe needs its own sessions: name Postgres itself, not a pooler"),
    "replication": (("false", "off", "no", "0"), "Lethe writes to the database itself"),
    "sslcertmode": (("allow",), "a certificate is sent if sslcert names one"),
    "sslcompression": (("0",), "the driver does not compress"),
    "sslsni": (("1",), "the driver always names the host"),
}
#: Unsupported parameters, and the alternatives.
_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("gssdelegation", "gsslib", "krbsrvname"), "Lethe does not log in with GSSAPI"),
    **dict.fromkeys(
        ("oauth_client_id", "oauth_client_secret", "oauth_issuer", "oauth_scope"), "Lethe does not log in with OAuth"
    ),
    **dict.fromkeys(("keepalives_count", "keepalives_idle", "keepalives_interval"), "Lethe sets its own; leave it out"),
    **dict.fromkeys(("scram_client_key", "scram_server_key"), "give the password"),
    **dict.fromkeys(("service", "servicefile"), "copy the service file's entries into the URL"),
    "hostaddr": "give the address as the host",
    "require_auth": "the driver uses the method that the server asks for; leave it out and use sslmode=verify-full",
    "requirepeer": "the driver cannot check the owner of a socket; leave it out",
    "requiressl": "use sslmode=require",
    "sslcrldir": "name one file with sslcrl",
    "sslkeylogfile": "Lethe does not write TLS keys to files; leave it out",
    "tcp_user_timeout": "Lethe sets its own time-outs; leave it out",
}
_KNOWN = {*_USED, *_FIXED, *_REFUSED, *OWN_SETTINGS}
#: One word of `options`; a backslash escapes a blank.
_WORD = re.compile(r"(?:\\.|[^\s\\])+")
_MOST_CONNECT_S = 600


@dataclass(frozen=True, repr=False)
class PostgresUrl:
    """The contents of a URL; missing parts use the driver's defaults."""

    user: str | None
    password: str | None
    database: str | None
    #: Names, addresses or socket folders, and the port of each; tried in order.
    hosts: tuple[str, ...]
    ports: tuple[int, ...]
    #: More arguments of `asyncpg.connect`.
    arguments: Mapping[str, Any] = field(default_factory=dict)
    #: Settings that the server applies to the session.
    server_settings: Mapping[str, str] = field(default_factory=dict)


def read(url: str) -> PostgresUrl:
    """Return the contents of `url`.

    Reads the certificate files that it names. Raises ValueError. Its text is meant to follow the
    name of a setting, and contains no user, password or other value.
    """
    authority, path, parameters = split(url)
    given = query(parameters, "Postgres", _KNOWN)
    for name, value in given.items():
        _require_possible(name, value)
    user, password, places = credentials(authority)
    database = decoded(path) or None
    before = {"user": user, "password": password, "dbname": database, "host": places.rpartition(":")[0] or places}
    for name, written in before.items():
        if written and name in given:
            raise ValueError(f"{name} is given twice")
    hosts, ports = _places(places, given)
    return PostgresUrl(
        user=user or given.get("user"),
        password=password or given.get("password"),
        database=database or given.get("dbname"),
        hosts=hosts,
        ports=ports,
        arguments=_arguments(given),
        server_settings=_server_settings(given),
    )


def _require_possible(name: str, value: str) -> None:
    if "\0" in value:
        raise ValueError(f"{name} has a character that Postgres cannot take")
    if name in _FIXED:
        one_of(name, value, *_FIXED[name])
    if name in _REFUSED:
        raise ValueError(f"{name} cannot be used: {_REFUSED[name]}")
    if name in OWN_SETTINGS:
        raise ValueError(f"{name} cannot be used: Lethe sets its own; leave it out")


def _places(text: str, given: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    listed = text or given.get("host", "")
    default = os.environ.get("PGPORT") or "5432"
    if not listed:
        return (), (port("port", given.get("port", default)),)
    hosts, ports = zip(*(_place(decoded(one)) for one in listed.split(",")), strict=True)
    if "port" not in given:
        return hosts, tuple(port("PGPORT", default) if one is None else one for one in ports)
    if any(one is not None for one in ports):
        raise ValueError("port is given twice")
    numbers = tuple(port("port", one) for one in given["port"].split(","))
    if len(numbers) not in (1, len(hosts)):
        raise ValueError("port must be one number, or as many as there are hosts")
    return hosts, numbers if len(numbers) == len(hosts) else numbers * len(hosts)


def _place(text: str) -> tuple[str, int | None]:
    if text.startswith("/"):
        return text, None
    if text.startswith("["):
        name, _, rest = text[1:].partition("]")
        _, colon, number_ = rest.partition(":")
    else:
        name, colon, number_ = text.partition(":")
    return host(name), port("port", number_) if colon else None


def _arguments(given: Mapping[str, str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if "connect_timeout" in given:
        arguments["timeout"] = float(number("connect_timeout", given["connect_timeout"], 1, _MOST_CONNECT_S))
    if "passfile" in given:
        if not Path(given["passfile"]).is_file():
            raise ValueError("passfile names no file")
        arguments["passfile"] = given["passfile"]
    if "target_session_attrs" in given:
        allowed = ("any", "read-write", "primary")
        arguments["target_session_attrs"] = one_of(
            "target_session_attrs", given["target_session_attrs"], allowed, "Lethe writes"
        )
    return arguments | _tls(given)


def _tls(given: Mapping[str, str]) -> dict[str, Any]:
    mode = _mode(given)
    arguments: dict[str, Any] = {}
    if one_of("sslnegotiation", given.get("sslnegotiation", "postgres"), ("postgres", "direct")) == "direct":
        if mode not in _STRONG_MODES:
            raise ValueError("sslnegotiation=direct needs sslmode=require, verify-ca or verify-full")
        arguments["direct_tls"] = True
    named = [name for name in _TLS if name in given]
    if named and mode not in _STRONG_MODES:
        raise ValueError(f"{named[0]} needs sslmode=require, verify-ca or verify-full")
    if mode is not None:
        needs_context = bool(named) or mode.startswith("verify")
        arguments["ssl"] = _context(mode, _with_environment(given)) if needs_context else mode
    return arguments


def _mode(given: Mapping[str, str]) -> str | None:
    """Return the TLS mode; None if the URL leaves it to PGSSLMODE or the driver."""
    if "ssl" in given and "sslmode" in given:
        raise ValueError("ssl and sslmode are both given")
    # JDBC writes ssl=true, and SQLAlchemy a mode.
    mode = "require" if given.get("ssl") == "true" else given.get("ssl", given.get("sslmode"))
    if mode is not None:
        one_of("sslmode", mode, (*_WEAK_MODES, *_STRONG_MODES))
    if given.get("sslrootcert") == "system" and mode not in (None, "verify-full"):
        raise ValueError("sslrootcert=system needs sslmode=verify-full")
    return mode or ("verify-full" if given.get("sslrootcert") == "system" else None)


def _with_environment(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the parameters, with libpq's variables in place of missing TLS parameters."""
    variables = {name: os.environ.get("PG" + name.replace("_", "").upper()) for name in _TLS if name != "sslpassword"}
    return {**{name: value for name, value in variables.items() if value}, **given}


def _context(mode: str, given: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = mode == "verify-full"
    roots = given.get("sslrootcert")
    if roots is None and mode != "require":
        default = Path("~/.postgresql/root.crt").expanduser()
        if not default.is_file():
            raise ValueError(f"sslmode={mode} needs sslrootcert: a file of certificates, or system")
        roots = str(default)
    if roots is None:
        context.verify_mode = ssl.CERT_NONE
    elif roots == "system":
        context.load_default_certs()
    else:
        load_roots(context, "sslrootcert", roots)
    if "sslcrl" in given:
        load_roots(context, "sslcrl", given["sslcrl"])
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
    load_own(context, ("sslcert", "sslkey", "sslpassword"), given)
    versions = {name: given.get(name) for name in ("ssl_min_protocol_version", "ssl_max_protocol_version")}
    for name, version in versions.items():
        if version is not None:
            one_of(name, version, _TLS_VERSIONS)
    low, high = versions.values()
    context.minimum_version = _TLS_VERSIONS[low or "TLSv1.2"]
    if high is not None:
        context.maximum_version = _TLS_VERSIONS[high]
    # Postgres 17 requires it for direct TLS.
    context.set_alpn_protocols(["postgresql"])
    return context


def _server_settings(given: Mapping[str, str]) -> dict[str, str]:
    for name in _set_by(given.get("options", "")):
        if name in OWN_SETTINGS:
            raise ValueError(f"options sets {name}, which only Lethe may set; leave it out")
    settings = {name: given[name] for name in _SERVER_SETTINGS if name in given}
    if "fallback_application_name" in given:
        settings.setdefault("application_name", given["fallback_application_name"])
    return settings


def _set_by(options: str) -> list[str]:
    """Return the server settings that `options` sets: `-c name=value`, `-cname=value` or `--name=value`."""
    words = iter(_WORD.findall(options))
    assignments = []
    for word in words:
        if word == "-c":
            assignments.append(next(words, ""))
        elif word.startswith(("-c", "--")):
            assignments.append(word[2:])
    return [one.partition("=")[0].replace("-", "_").lower() for one in assignments]
