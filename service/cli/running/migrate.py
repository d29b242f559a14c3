"""`lethe migrate`: bring the database to the schema of this version."""

import asyncio
from pathlib import Path

from service.cli.console import Json, doing, interrupted, print_result
from service.cli.server import Home
from service.settings import load_settings


def command(home: Home = Path("var"), as_json: Json = False) -> None:
    """Migrate the database to this version. `lethe serve` also does this at its start.

    Uses DATABASE_URL, or the private Postgres of LETHE_HOME.

    Example: [bold]DATABASE_URL=postgresql://lethe@db/lethe ./lethe migrate[/bold]
    """
    from service.db import migrate, schema
    from service.embedded import open_servers

    left = "The migration is one transaction: it was applied entirely or not at all. Run the same command again."
    with (
        interrupted(lambda: left),
        open_servers(load_settings(home=home)) as settings,
        doing("Migrating the tables"),
    ):
        assert settings.database_url is not None
        before = asyncio.run(schema.current(settings.database_url))
        asyncio.run(migrate.upgrade(settings.database_url))
    after = schema.head()
    said = (
        f"is at revision {before} already" if before == after else f"went from {before or 'empty'} to revision {after}"
    )
    print_result({"before": before, "after": after}, as_json, f"The database {said}.")
