"""Run migrations on the connection from `service.db.migrate` or, under `alembic`, on `DATABASE_URL`."""

import asyncio
import os

from alembic import context
from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import create_async_engine

from service.db.engine import connection_to, unlimit
from service.db.migrate import take_turn


def run(connection: Connection) -> None:
    """Migrate inside `connection`'s current transaction."""
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()


async def run_on_database_url() -> None:
    """Open a connection to `DATABASE_URL` and migrate on it."""
    if "DATABASE_URL" not in os.environ:
        raise SystemExit("Set DATABASE_URL, or use ./lethe migrate.")
    address, arguments = connection_to(os.environ["DATABASE_URL"])
    engine = create_async_engine(address, connect_args=arguments)
    event.listen(engine.sync_engine, "connect", unlimit)
    async with engine.begin() as connection:
        await connection.run_sync(take_turn)
        await connection.run_sync(run)
    await engine.dispose()


if context.is_offline_mode():
    raise SystemExit("Migrations run on a live database; --sql is not supported.")
if "connection" in context.config.attributes:
    run(context.config.attributes["connection"])
else:
    asyncio.run(run_on_database_url())
