"""`lethe keys`: create, list, rotate and revoke API keys."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from service.cli.console import Json, note, print_result, table
from service.cli.database import opened, with_database
from service.cli.server import Home
from service.domain.kinds import RequestKind
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.errors import ConfigurationError, NotFound
from service.settings import Settings
from service.text import fault_of

if TYPE_CHECKING:
    from service.access.keyring import Keyring
    from service.db.engine import Connection

#: A valid key is called unused after this time, and expiring before this time.
_UNUSED_AFTER, _EXPIRING_WITHIN = timedelta(days=90), timedelta(days=30)
_DEFAULT_DAYS, _MOST_DAYS = 365, 3650
_UNKNOWN = "`./lethe keys list` lists the keys."

Days = Annotated[
    int | None,
    typer.Option(
        "--expires-after", min=1, max=_MOST_DAYS, help=f"Days until the key expires; {_DEFAULT_DAYS} by default."
    ),
]
Never = Annotated[bool, typer.Option("--never", help="The key does not expire.")]


def create(
    name: Annotated[str, typer.Argument(help="Name of the key, as shown in lists.")],
    scope: Annotated[list[Scope], typer.Option(help="Scope of the key; repeatable.")],
    kind: Annotated[
        list[RequestKind] | None,
        typer.Option(help="Kind of request that the key may make; repeatable. All kinds by default."),
    ] = None,
    expires_after: Days = None,
    never: Never = False,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Create a key and print it once. Lethe stores only a keyed hash.

    Example: [bold]./lethe keys create shop --scope predictions:read --scope deletions:write[/bold]
    """
    from service.access.api_keys import RESERVED_NAMES, ApiKeyRepository, new_api_key

    if fault := fault_of(name):
        raise ConfigurationError(f"The name {fault}.", "Choose another name.")
    if name in RESERVED_NAMES:
        raise ConfigurationError(f"The name {name!r} is reserved for a key that Lethe creates.", "Choose another name.")
    made, expires_at = new_api_key(), _expiry(expires_after, never)

    async def insert(connection: "Connection", settings: Settings) -> ApiKey:
        key_hash = (await _keyring(settings)).api_key_hash(made.text)
        return await ApiKeyRepository(connection).create(
            made.id, name, scope, key_hash, kinds=kind or (), expires_at=expires_at
        )

    _print_text(with_database(home, insert), made.text, as_json)


def list_(
    subject: Annotated[
        str | None, typer.Option(help="List only this subject of the OpenID Connect issuer: the `sub` of its tokens.")
    ] = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """List all keys, including expired and revoked ones, and say which need attention.

    Subjects of the OpenID Connect issuer are listed too.

    Example: [bold]./lethe keys list[/bold]
    """
    from service.access.api_keys import ApiKeyRepository

    async def read(connection: "Connection", settings: Settings) -> list[ApiKey]:
        keys = ApiKeyRepository(connection)
        if subject is None:
            return await keys.list()
        if settings.oidc_issuer is None:
            raise ConfigurationError("No OpenID Connect issuer is configured.", "Set LETHE_OIDC_ISSUER.")
        found = await keys.subject_id((await _keyring(settings)).subject_hash(settings.oidc_issuer, subject))
        return [key for key in await keys.list() if key.id == found]

    keys, now = with_database(home, read), datetime.now(UTC)
    rows = [
        (
            str(key.id),
            _prefix(key) or "",
            key.name,
            _may(key),
            f"{key.created_at:%Y-%m-%d}",
            "never" if key.expires_at is None else f"{key.expires_at:%Y-%m-%d}",
            "" if key.used_at is None else f"{key.used_at:%Y-%m-%d %H:%M}",
            _state(key, now),
        )
        for key in keys
    ]
    titles = ("id", "begins with", "name", "scopes and kinds", "created", "expires", "last used (UTC)", "state")
    members = [_facts(key) | {"state": _state(key, now)} for key in keys]
    print_result({"keys": members}, as_json, table("API keys", titles, rows))


def rotate(
    key_id: Annotated[UUID, typer.Argument(help="Id of the key, from `lethe keys list`.")],
    overlap: Annotated[
        int, typer.Option(min=0, max=90, help="Days for which the current text is accepted beside the new one.")
    ] = 7,
    expires_after: Days = None,
    never: Never = False,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Give a key a new text and print it once. The key keeps its name, rights and requests.

    Without options, it expires in a year from now, or never if it did not expire before.

    Example: [bold]./lethe keys rotate 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11 --overlap 3[/bold]
    """
    from service.access.api_keys import RESERVED_NAMES, ApiKeyRepository, new_api_key

    made, expires_at = new_api_key(key_id), _expiry(expires_after, never)

    async def replace(connection: "Connection", settings: Settings) -> ApiKey | None:
        nonlocal expires_at
        keys = ApiKeyRepository(connection)
        for key in await keys.list():
            if key.id != key_id:
                continue
            if key.name in RESERVED_NAMES:
                raise ConfigurationError(
                    f"The key {key.name!r} is not rotated here.",
                    "Change LETHE_ADMIN_KEY and restart, or create another key and revoke this one.",
                )
            if key.is_subject:
                raise ConfigurationError(f"{key.name} is a subject of the issuer and has no text.", _UNKNOWN)
            if key.expires_at is None and expires_after is None:
                expires_at = None
        key_hash = (await _keyring(settings)).api_key_hash(made.text)
        return await keys.rotate(key_id, key_hash, overlap=timedelta(days=overlap), expires_at=expires_at)

    rotated = with_database(home, replace)
    if rotated is None:
        raise NotFound(f"Unknown or revoked key {key_id}.", _UNKNOWN)
    _print_text(rotated, made.text, as_json)


def revoke(
    key_id: Annotated[UUID, typer.Argument(help="Id of the key, from `lethe keys list`.")],
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Revoke a key. Requests with it are refused from then on.

    Example: [bold]./lethe keys revoke 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11[/bold]
    """
    from service.access.api_keys import ApiKeyRepository

    revoked = with_database(home, lambda connection, _: ApiKeyRepository(connection).revoke(key_id))
    if revoked is None:
        raise NotFound(f"Unknown key {key_id}.", _UNKNOWN)
    print_result(_facts(revoked), as_json, f"{revoked.id} {revoked.name} revoked")


async def _keyring(settings: Settings) -> "Keyring":
    from service.processes.key_folder import open_keyring

    assert settings.database_url is not None
    async with opened(settings.database_url) as engine:
        return await open_keyring(engine, settings)


def _expiry(days: int | None, never: bool) -> datetime | None:
    """Return when a key expires; None for never."""
    if never and days is not None:
        raise ConfigurationError("--never and --expires-after contradict each other.", "Give one of them.")
    return None if never else datetime.now(UTC) + timedelta(days=_DEFAULT_DAYS if days is None else days)


def _print_text(key: ApiKey, text: str, as_json: bool) -> None:
    """Print a new text of a key, alone on standard output, and on standard error what it is for."""
    until = "does not expire" if key.expires_at is None else f"expires {key.expires_at:%Y-%m-%d}"
    note(f"Key {key.id} for {key.name} ({_may(key)}; {until}), shown only once:")
    if key.previous_until is not None:
        note(f"The previous text is accepted until {key.previous_until:%Y-%m-%d %H:%M} UTC.")
    print_result({**_facts(key), "key": text}, as_json, text)


def _facts(key: ApiKey) -> dict[str, object]:
    """Return the JSON members of a key."""
    kinds = None if key.kinds is None else sorted(key.kinds)
    return asdict(key) | {"scopes": sorted(key.scopes), "kinds": kinds, "prefix": _prefix(key)}


def _may(key: ApiKey) -> str:
    """Return what a key may do."""
    kinds = () if key.kinds is None else ("kinds:", *sorted(key.kinds))
    return " ".join((*sorted(key.scopes), *kinds))


def _prefix(key: ApiKey) -> str | None:
    """Return the beginning of a key's text; None for one that Lethe does not choose, or a subject, which has none."""
    from service.access.api_keys import CHOSEN_NAMES, prefix_of

    return None if key.name in CHOSEN_NAMES or key.is_subject else prefix_of(key.id)


def _state(key: ApiKey, now: datetime) -> str:
    """Return whether a key is valid, and what needs attention."""
    if key.revoked_at is not None:
        return f"revoked {key.revoked_at:%Y-%m-%d}"
    if key.is_subject:
        return "not seen for a day" if key.has_expired(now) else "valid"
    if key.has_expired(now):
        return "expired"
    if key.expires_at is not None and key.expires_at <= now + _EXPIRING_WITHIN:
        return "expires soon"
    if (key.used_at or key.created_at) <= now - _UNUSED_AFTER:
        return f"unused for {_UNUSED_AFTER.days} days"
    if key.previous_until is not None and key.previous_until > now:
        return f"previous text valid until {key.previous_until:%Y-%m-%d}"
    return "valid"
