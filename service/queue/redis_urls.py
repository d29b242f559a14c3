"""Read Redis URLs in redis-py's syntax: each parameter is used, or refused by name."""

import ssl
from collections.abc import Callable, Mapping
from functools import partial
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
    truth,
)

SCHEMES = ("redis", "rediss", "unix")
#: Maximum number of databases in a Redis.
_MOST_DATABASES = 100_000
#: The minimum exceeds a blocking read of the queue (seconds).
_LEAST_TIMEOUT_S, _MOST_TIMEOUT_S = 1.0, 600.0


def _text(name: str, value: str) -> str:
    return value


#: Reader of each parameter.
_USED: Mapping[str, Callable[[str, str], Any]] = {
    "username": _text,
    "password": _text,
    "db": lambda name, value: int(number(name, value, 0, _MOST_DATABASES)),
    "client_name": _text,
    "socket_timeout": partial(number, low=_LEAST_TIMEOUT_S, high=_MOST_TIMEOUT_S, whole=False),
    "socket_connect_timeout": partial(number, low=0.1, high=_MOST_TIMEOUT_S, whole=False),
    "socket_keepalive": truth,
    "health_check_interval": partial(number, low=0, high=3600),
    "protocol": lambda name, value: int(one_of(name, value, ("2", "3"))),
}
#: Keyed by redis-py's number, and by name.
_TLS_VERSIONS: Mapping[str, ssl.TLSVersion] = {
    str(written): version
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    for written in (version.value, version.name)
}
#: Only with `rediss://`.
_TLS: Mapping[str, Callable[[str, str], Any]] = {
    "ssl_cert_reqs": lambda name, value: one_of(
        name, value.lower().removeprefix("cert_"), ("required", "optional", "none")
    ),
    "ssl_ca_certs": _text,
    "ssl_ca_path": _text,
    "ssl_ca_data": _text,
    "ssl_certfile": _text,
    "ssl_keyfile": _text,
    "ssl_password": _text,
    "ssl_check_hostname": truth,
    "ssl_ciphers": _text,
    "ssl_min_version": lambda name, value: _TLS_VERSIONS[one_of(name, value, _TLS_VERSIONS)],
}
#: redis-py parameters with another place in the URL; the rest are refused by name.
_ELSEWHERE: Mapping[str, str] = {
    "connection_class": "the scheme sets it: rediss:// for TLS, unix:// for a socket",
    "host": "put it before the path",
    "path": "use unix:// and the path of the socket",
    "port": "put it after the host",
    "timeout": "use socket_timeout",
}
_KNOWN = {*_USED, *_TLS, *_ELSEWHERE}


def read(url: str) -> dict[str, Any]:
    """Return `url` as arguments of redis-py's connections; `ssl_cert_reqs` among them means TLS.

    Reads the certificate files that it names. Raises ValueError. Its text is meant to follow the
    name of a setting, and contains no user, password or other value.
    """
    scheme = url.partition("://")[0]
    authority, path, parameters = split(url)
    given = query(parameters, "Lethe's Redis", _KNOWN)
    for name in given:
        if name in _ELSEWHERE:
            raise ValueError(f"{name} cannot be used: {_ELSEWHERE[name]}")
        if name in _TLS and scheme != "rediss":
            raise ValueError(f"{name} needs rediss://")
    arguments: dict[str, Any] = {name: (_USED.get(name) or _TLS[name])(name, value) for name, value in given.items()}
    user, password, place = credentials(authority)
    if scheme == "unix":
        if place or not path:
            raise ValueError("must be unix:///PATH, the path of a socket")
        if "socket_keepalive" in given:
            raise ValueError("socket_keepalive needs redis:// or rediss://")
        before: dict[str, Any] = {"path": "/" + decoded(path)}
    else:
        before = _place(place)
        if path:
            before["db"] = _USED["db"]("the database after the last /", decoded(path))
    before |= {name: value for name, value in (("username", user), ("password", password)) if value is not None}
    for name in before.keys() & given.keys():
        raise ValueError(f"{name} is given twice")
    if scheme == "rediss":
        arguments.setdefault("ssl_cert_reqs", "required")
        _require_usable(arguments)
    return arguments | before


def _place(text: str) -> dict[str, Any]:
    name, colon, number_ = decoded(text), "", ""
    if name.startswith("["):
        name, _, rest = name[1:].partition("]")
        _, colon, number_ = rest.partition(":")
    else:
        name, colon, number_ = name.partition(":")
    return {"host": host(name or "localhost"), "port": port("port", number_) if colon else 6379}


def _require_usable(arguments: Mapping[str, Any]) -> None:
    """Check the TLS parameters now, because redis-py reads them only when it connects."""
    if arguments["ssl_cert_reqs"] == "none" and arguments.get("ssl_check_hostname"):
        raise ValueError("ssl_check_hostname needs ssl_cert_reqs=required")
    context = ssl.create_default_context()
    if "ssl_ca_certs" in arguments:
        load_roots(context, "ssl_ca_certs", arguments["ssl_ca_certs"])
    if "ssl_ca_path" in arguments:
        load_roots(context, "ssl_ca_path", folder=arguments["ssl_ca_path"])
    load_own(context, ("ssl_certfile", "ssl_keyfile", "ssl_password"), arguments)
    try:
        if "ssl_ca_data" in arguments:
            context.load_verify_locations(cadata=arguments["ssl_ca_data"])
    except (ssl.SSLError, ValueError):
        raise ValueError("ssl_ca_data is not a certificate in PEM format") from None
    try:
        context.set_ciphers(arguments.get("ssl_ciphers", "DEFAULT"))
    except ssl.SSLError:
        raise ValueError("ssl_ciphers names no known cipher") from None
