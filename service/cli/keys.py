"""`lethe keys`: create, list and revoke API keys."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from service.cli.console import Json, note, print_result, table
from service.cli.database import opened, with_database
from service.cli.server import Home
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.errors import ConfigurationError, NotFound
from service.settings import Settings
from service.text import fault_of

if TYPE_CHECKING:
    from service.db.engine import Connection


def create(
    name: Annotated[str, typer.Argument(help="Name of the key, as shown in lists.")],
    scope: Annotated[list[Scope], typer.Option(help="Scope of the key; repeatable.")],
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Create a key and print it once. Lethe stores only a keyed hash.

    Example: [bold]./lethe keys create shop --scope predictions:read --scope deletions:write[/bold]
    """
    from service.access.api_keys import RESERVED_NAMES, ApiKeyRepository, new_api_key
    from service.processes.key_folder import open_keyring

    if fault := fault_of(name):
        raise ConfigurationError(f"The name {fault}.", "Choose another name.")
    if name in RESERVED_NAMES:
        raise ConfigurationError(f"The name {name!r} is reserved for a key that Lethe creates.", "Choose another name.")
    made = new_api_key()

    async def insert(connection: "Connection", settings: Settings) -> ApiKey:
        assert settings.database_url is not None
        async with opened(settings.database_url) as engine:
            keyring = await open_keyring(engine, settings.home / "keys")
        return await ApiKeyRepository(connection).create(made.id, name, scope, keyring.api_key_hash(made.text))

    created = with_database(home, insert)
    note(f"Key {created.id} for {created.name} ({_scopes(created)}), shown only once:")
    print_result({**_facts(created), "key": made.text}, as_json, made.text)


def list_(home: Home = Path("var"), as_json: Json = False) -> None:
    """List all keys, including revoked ones, by name and id.

    Example: [bold]./lethe keys list[/bold]
    """
    from service.access.api_keys import ApiKeyRepository

    keys = with_database(home, lambda connection, _: ApiKeyRepository(connection).list())
    rows = [(str(key.id), key.name, _scopes(key), f"{key.created_at:%Y-%m-%d %H:%M}", _revoked(key)) for key in keys]
    titles = ("id", "name", "scopes", "created (UTC)", "revoked (UTC)")
    print_result({"keys": list(map(_facts, keys))}, as_json, table("API keys", titles, rows))


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
        raise NotFound(f"Unknown key {key_id}.", "`./lethe keys list` lists the keys.")
    print_result(_facts(revoked), as_json, f"{revoked.id} {revoked.name} revoked")


def _facts(key: ApiKey) -> dict[str, object]:
    """Return the JSON members of a key."""
    return asdict(key) | {"scopes": sorted(key.scopes)}


def _scopes(key: ApiKey) -> str:
    return " ".join(sorted(key.scopes))


def _revoked(key: ApiKey) -> str:
    return "" if key.revoked_at is None else f"{key.revoked_at:%Y-%m-%d %H:%M}"
