"""The role that the running service works as: it may read and add to events and log, and change neither.

`migrate` makes it where it may, and grants it what the service needs of every table. The service then works as it if
its login may; a server of one's own can have it as the login itself.
"""

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from service.db.transactions import is_outage, transaction

#: Belongs to the server, not to one database; the same for all Lethes on it.
APPLICATION_ROLE = "lethe_app"
#: Read and added to, never changed.
APPEND_ONLY = frozenset({"events", "leaves", "log_nodes", "checkpoints", "log_keys"})
#: Read alone: only `migrate`, as the owner, changes the schema.
_READ_ONLY = frozenset({"alembic_version"})

_FACTS = text("""
    SELECT rolcreaterole OR rolsuper AS may_create,
           EXISTS (SELECT FROM pg_roles WHERE rolname = :role) AS exists,
           current_schema() AS schema
    FROM pg_roles WHERE rolname = current_user
""")
_OWN_RELATIONS = text("""
    SELECT relname, relkind IN ('v', 'm') AS is_view FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
      AND pg_has_role(current_user, relowner, 'USAGE')
    ORDER BY relname
""")
#: Two databases of one server may come to this at the same moment.
_CREATE = f"""
    DO $$ BEGIN
        CREATE ROLE {APPLICATION_ROLE} NOLOGIN;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END $$
"""
_MAY_BECOME = text("SELECT pg_has_role(current_user, :role, 'SET')")
_MAY_GRANT = text("SELECT pg_has_role(current_user, :role, 'MEMBER WITH ADMIN OPTION')")


def grant(connection: Connection) -> None:
    """Give the application's role its rights on every table and view of the caller's; make it where that may be."""
    facts = connection.execute(_FACTS, {"role": APPLICATION_ROLE}).one()
    if not facts.exists and not facts.may_create:
        return
    if not facts.exists:
        connection.exec_driver_sql(_CREATE)
    named = {"role": APPLICATION_ROLE}
    if not connection.scalar(_MAY_BECOME, named) and connection.scalar(_MAY_GRANT, named):
        connection.exec_driver_sql(f"GRANT {APPLICATION_ROLE} TO CURRENT_USER")
    for name, is_view in connection.execute(_OWN_RELATIONS).all():
        connection.exec_driver_sql(f'REVOKE ALL ON "{name}" FROM {APPLICATION_ROLE}')
        connection.exec_driver_sql(f'GRANT {"SELECT" if is_view else _rights(name)} ON "{name}" TO {APPLICATION_ROLE}')


async def available(engine: AsyncEngine) -> str | None:
    """Return the application's role if the engine's login may work as it; raises `Unavailable`."""
    try:
        async with transaction(engine) as connection:
            await connection.exec_driver_sql(f"SET LOCAL ROLE {APPLICATION_ROLE}")
    except DBAPIError as error:
        if is_outage(error):
            raise
        return None
    return APPLICATION_ROLE


def _rights(table: str) -> str:
    if table in _READ_ONLY:
        return "SELECT"
    return "SELECT, INSERT" if table in APPEND_ONLY else "SELECT, INSERT, UPDATE, DELETE"
