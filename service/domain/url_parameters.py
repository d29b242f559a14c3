"""Parsing shared by Postgres and Redis URLs. Errors are ValueErrors that never quote a value."""

import re
import ssl
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from urllib.parse import unquote

_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def split(url: str) -> tuple[str, str, str]:
    """Return authority, path (without its first slash) and query of a URL, none of them decoded."""
    before, _, parameters = url.partition("://")[2].partition("?")
    authority, _, path = before.partition("/")
    if "@" in path or "@" in parameters:
        raise ValueError("has a / or ? in its user or password, or an @ after them: use %2F, %3F and %40")
    return authority, path, parameters


def credentials(authority: str) -> tuple[str | None, str | None, str]:
    """Split an authority into user, password and the rest."""
    login, _, rest = authority.rpartition("@")
    user, _, password = login.partition(":")
    return decoded(user) or None, decoded(password) or None, rest


def decoded(text: str) -> str:
    """Return `text` without percent-encoding."""
    if _ESCAPE.search(text):
        raise ValueError("has a % that begins no escape: write %25")
    return unquote(text, errors="strict")


def query(parameters: str, kind: str, known: Iterable[str]) -> dict[str, str]:
    """Return the parameters of a URL by name; each must be `known` and occur once."""
    found: dict[str, str] = {}
    for part in parameters.split("&") if parameters else ():
        encoded, _, value = part.partition("=")
        name = decoded(encoded)
        if name not in known:
            near = get_close_matches(name, known, 1)
            question = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{name!r} is not a parameter of {kind} URLs{question}")
        if not value:
            raise ValueError(f"{name} has no value")
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = decoded(value)
    return found


def one_of(name: str, value: str, allowed: Iterable[str], why: str = "") -> str:
    """Return `value` if it is allowed."""
    allowed = tuple(allowed)
    if value not in allowed:
        raise ValueError(f"{name} must be {' or '.join(allowed)}{why and f': {why}'}")
    return value


def number(name: str, value: str, low: float, high: float, *, whole: bool = True) -> float:
    """Parse `value` as a number."""
    kind = int if whole else float
    try:
        found = kind(value)
    except ValueError:
        found = kind(-1)
    if not value.isascii() or not low <= found <= high:
        raise ValueError(f"{name} must be a {'whole ' if whole else ''}number from {low:g} to {high:g}")
    return found


def truth(name: str, value: str) -> bool:
    """Parse `value` as a boolean."""
    return one_of(name, value.lower(), (*_TRUE, *_FALSE)) in _TRUE


def port(name: str, value: str) -> int:
    """Parse `value` as a TCP port."""
    return int(number(name, value, 1, 65_535))


def host(name: str) -> str:
    """Return `name` if it is a valid host name or address."""
    try:
        name.encode("idna")
    except UnicodeError:
        name = ""
    if not name or any(one.isspace() for one in name):
        raise ValueError("has an invalid host name or address")
    return name


def load_roots(context: ssl.SSLContext, name: str, file: str | None = None, folder: str | None = None) -> None:
    """Trust the certificates in a file or folder; `name` is the parameter that gave it."""
    try:
        context.load_verify_locations(file, folder)
    except OSError as error:
        raise ValueError(f"{name} names no readable certificates ({_reason(error)})") from None


def load_own(context: ssl.SSLContext, names: tuple[str, str, str], given: Mapping[str, str]) -> None:
    """Load a client certificate from the parameters `names`: certificate, key, and password of the key."""
    certificate, key, password = names
    if certificate not in given:
        if key in given or password in given:
            raise ValueError(f"{key} and {password} need {certificate}")
        return
    try:
        context.load_cert_chain(given[certificate], given.get(key), lambda: given.get(password, ""))
    except OSError as error:
        raise ValueError(
            f"{certificate} and {key} name no certificate with its key ({_reason(error)}); {password} is the key's "
            "password"
        ) from None


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not in PEM format"
    return str(error.strerror)
