"""Prepare a database before any process serves: its schema and a first key. Uses the owner's rights."""

import sys
from pathlib import Path

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from model_store.replacement import finish_move
from model_store.store import Store
from service.access.api_keys import ensure_first_key
from service.access.request_keys import RequestKeys
from service.db import migrate
from service.db.engine import create_engine
from service.db.tables import ServiceSettingsRow
from service.db.transactions import transaction
from service.private_files import write_private
from service.processes.key_folder import SLOTS, home_check, open_keyring, open_log_keys
from service.settings import Settings
from service.unlearner.agreement import require_own


async def migrate_own(settings: Settings, store: Store) -> None:
    """Apply the migrations if the database belongs to this LETHE_HOME and this store.

    Otherwise raises StateMismatch, and `AnotherHome` before any other; the database then stays unchanged. Also raises
    the errors of `migrate.upgrade`.
    """
    assert settings.database_url is not None
    request_keys, check_home = RequestKeys(settings.home / "keys" / SLOTS), await home_check(settings)

    async def belongs(connection: AsyncConnection) -> None:
        await check_home(connection)
        await require_own(connection, store, request_keys)

    await migrate.upgrade(settings.database_url, belongs)


async def prepare(settings: Settings) -> str | None:
    """Upgrade the database to this version's schema and check its keys; returns a first API key if one was created.

    Raises StateMismatch if the database does not belong to model and keys; it is unchanged then.
    """
    database_url, _ = settings.servers
    finish_move(settings.model_dir)
    await migrate_own(settings, Store.open(settings.model_dir))
    engine = create_engine(database_url)
    try:
        keyring = await open_keyring(engine, settings)
        await open_log_keys(engine, settings.home / "keys")
        async with transaction(engine) as connection:
            scopes = sorted({scope for grant in settings.grants for scope in grant.scopes})
            await connection.execute(
                update(ServiceSettingsRow).values(deadline_days=settings.deadline_days, oidc_scopes=scopes)
            )
        return await ensure_first_key(engine, keyring, settings)
    finally:
        await engine.dispose()


def deliver(key: str, home: Path) -> None:
    """Show a newly created key once: on the terminal, or in a file private to this user."""
    if sys.stdout.isatty():
        _print(f"The first API key, shown only once:\n  {key}")
        return
    path = home / "run" / "admin.key"
    write_private(path, key + "\n")
    _print(f"The first API key is in {path}")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
