"""The role that the running service works as: it may read and add to events and log, and change neither.

What triggers derive from requests it may read alone.

`migrate` makes it where it may, and grants it what the service needs of every table. The service then works as it if
its login may; a server of one's own can have it as the login itself.
"""

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from service.db.transactions import is_outage, transaction

#: Belongs to the server, not to one database; the same for all Lethes on it.
APPLICATION_ROLE = "lethe_app"
#: Reads the views, which hold no reference, list of ids or key, and no table: for tools that draw charts.
AUDIT_ROLE = "lethe_audit"
#: Read and added to, never changed.
APPEND_ONLY = frozenset({"events", "leaves", "log_nodes", "checkpoints", "log_keys", "drills", "refused_requests"})
#: Written by triggers on the tables that they are derived from, and by `audit_fold`, with the rights of the owner.
DERIVED = frozenset({"request_search", "audit_counts", "audit_times"})
#: Read alone: only `migrate`, as the owner, changes the schema.
_READ_ONLY = DERIVED | {"alembic_version"}

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
#: What the service calls to have done with the owner's rights; those of triggers nobody calls.
_OWN_FUNCTIONS = text("""
    SELECT oid::regprocedure::text FROM pg_proc
    WHERE pronamespace = current_schema()::regnamespace AND prosecdef AND prorettype <> 'trigger'::regtype
      AND pg_has_role(current_user, proowner, 'USAGE')
    ORDER BY 1
""")
#: Two databases of one server may come to this at the same moment.
_CREATE = """
    DO $$ BEGIN
        CREATE ROLE {role} NOLOGIN;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END $$
"""
_MAY_BECOME = text("SELECT pg_has_role(current_user, :role, 'SET')")
_MAY_GRANT = text("SELECT pg_has_role(current_user, :role, 'MEMBER WITH ADMIN OPTION')")


def grant(connection: Connection) -> None:
    """Give both roles their rights on every table and view of the caller's; make them where that may be."""
    rights = {APPLICATION_ROLE: _rights, AUDIT_ROLE: _audit_rights}
    roles = [role for role in rights if _is_there(connection, role)]
    named = {"role": APPLICATION_ROLE}
    if APPLICATION_ROLE in roles and not connection.scalar(_MAY_BECOME, named) and connection.scalar(_MAY_GRANT, named):
        connection.exec_driver_sql(f"GRANT {APPLICATION_ROLE} TO CURRENT_USER")
    for name, is_view in connection.execute(_OWN_RELATIONS).all():
        for role in roles:
            connection.exec_driver_sql(f'REVOKE ALL ON "{name}" FROM {role}')
            if given := rights[role](name, is_view):
                connection.exec_driver_sql(f'GRANT {given} ON "{name}" TO {role}')
    if APPLICATION_ROLE in roles:
        for function in connection.scalars(_OWN_FUNCTIONS).all():
            connection.exec_driver_sql(f"GRANT EXECUTE ON FUNCTION {function} TO {APPLICATION_ROLE}")


def _is_there(connection: Connection, role: str) -> bool:
    """Make a role unless it exists, and tell whether it does now."""
    facts = connection.execute(_FACTS, {"role": role}).one()
    if not facts.exists and facts.may_create:
        connection.exec_driver_sql(_CREATE.format(role=role))
    return bool(facts.exists or facts.may_create)


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


def _rights(name: str, is_view: bool) -> str:
    if is_view or name in _READ_ONLY:
        return "SELECT"
    return "SELECT, INSERT" if name in APPEND_ONLY else "SELECT, INSERT, UPDATE, DELETE"


def _audit_rights(name: str, is_view: bool) -> str:
    return "SELECT" if is_view else ""
