"""`lethe migrate`: bring the database to the schema of this version."""

import asyncio
from pathlib import Path

from service.cli.console import stdout
from service.cli.server import Home
from service.settings import load_settings


def command(home: Home = Path("var")) -> None:
    """Bring the database's tables to this version; `lethe serve` does it by itself at start.

    Uses DATABASE_URL, or the private Postgres of LETHE_HOME.

    Example: [bold]DATABASE_URL=postgresql://lethe@db/lethe ./lethe migrate[/bold]
    """
    from service.db import migrate, schema
    from service.embedded import open_servers

    with open_servers(load_settings(home=home), share=True) as settings:
        assert settings.database_url is not None
        before = asyncio.run(schema.current(settings.database_url))
        asyncio.run(migrate.upgrade(settings.database_url))
    if before == schema.head():
        stdout().print(f"The database is at revision {before} already.", markup=False)
    else:
        stdout().print(f"The database went from {before or 'empty'} to revision {schema.head()}.", markup=False)
