"""The role that the running service works as, and what it may do in the database.

It reads everything, adds, and changes only what its work changes: a request's way and what is told of it, how an
import, a repair or a recovery went on, leases, the pointer, whether a key is revoked. It takes back nothing but entries
of the outbox: not what was deleted, not what was measured, not what a key may do, not the log. What triggers
derive from requests it may read alone, and a lost key's fingerprint a function replaces for it.

`migrate` makes it where it may, and grants it these rights. The service then works as it if its login may; a server of
one's own can have it as the login itself.
"""

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from service.db.transactions import is_outage, transaction

#: Belongs to the server, not to one database; the same for all Lethes on it.
APPLICATION_ROLE = "lethe_app"
#: Reads the views, which hold no reference, list of ids or key, and no table: for tools that draw charts.
AUDIT_ROLE = "lethe_audit"
#: Written by triggers on the tables that they are derived from, and by `audit_fold`, with the rights of the owner.
DERIVED = frozenset({"request_search", "audit_counts", "audit_times"})
#: Read and added to, never changed.
_ADDED_TO = frozenset(
    {"events", "leaves", "log_nodes", "checkpoints", "log_keys", "drills", "refused_requests"}
    | {"batches", "request_audits", "tombstones", "tombstone_keys", "vault_keys"}
)
#: Table -> the columns of it that are changed; others stay as they were added.
_CHANGED = {
    "requests": (
        "status swept_at taken_at batch_id applied_at completed_at failed_at cancelled_at guarantee repair "
        "explanation failure ciphertext key_file key_place already_deleted_by subject_commitments reference_commitment"
    ),
    "versions": "finished_at durations_ms span_residual repair repair_version",
    "imports": "status refusal finished_at",
    "recoveries": "requests_failed",
    "leases": "holder fencing expires_at",
    "pointers": "version fencing folder digest weights_sha256 moved_at",
    # Whoever can add a key makes none that is valid: its hash needs the pepper, which is in the key folder.
    "api_keys": "revoked_at",
    # Its rows are locked, which asks for the right to change some column.
    "outbox": "created_at",
}
#: What is taken back: entries that the stream has.
_TAKEN_BACK = frozenset({"outbox"})

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
    if name in _CHANGED:
        changed = ", ".join(_CHANGED[name].split())
        return f"SELECT, INSERT, UPDATE ({changed}){', DELETE' if name in _TAKEN_BACK else ''}"
    if name in _ADDED_TO:
        return "SELECT, INSERT"
    # Only `migrate`, as the owner, changes the schema and what is said of it.
    return "SELECT" if is_view or name in DERIVED or name == "alembic_version" else ""


def _audit_rights(name: str, is_view: bool) -> str:
    return "SELECT" if is_view else ""
