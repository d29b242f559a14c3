"""The database roles of Lethe's processes: their rights, table by table, and how to create and assume them."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.db.engine import create_engine, require_own_session
from service.db.transactions import is_outage, transaction
from service.errors import ConfigurationError, DatabaseRefused

#: Roles belong to the server, not to one database; all Lethes on it share them.
API_ROLE = "lethe_api"
UNLEARNER_ROLE = "lethe_unlearner"
#: Reads only the views, which contain no reference, id list or key: for charting tools.
AUDIT_ROLE = "lethe_audit"

#: Written with the owner's rights by triggers on their source tables, and by `audit_fold`.
DERIVED = frozenset({"request_search", "audit_counts", "audit_times"})

_ALL = "*"


@dataclass(frozen=True)
class Rights:
    """Rights on one table besides reading it; columns are separated by spaces."""

    #: Columns that an insert may set; the others get their defaults. "*" for all.
    add: str = ""
    #: Columns that an update may change; others stay as inserted.
    change: str = ""
    remove: bool = False

    def sql(self) -> str:
        """Format for GRANT."""
        given = ["SELECT"]
        if self.add:
            given.append("INSERT" if self.add == _ALL else f"INSERT ({', '.join(self.add.split())})")
        if self.change:
            given.append(f"UPDATE ({', '.join(self.change.split())})")
        if self.remove:
            given.append("DELETE")
        return ", ".join(given)


_READ = Rights()
#: Append-only records.
_GROWING = (
    *("batches", "checkpoints", "events", "leaves", "log_keys", "log_nodes", "request_audits"),
    *("tombstone_keys", "vault_keys"),
)
#: Columns of the lease: its holder, and the holder's report.
_LEASE = (
    "holder fencing held_since expires_at phase reason repair_progress device checks served_at serving_since "
    "failures failing_since home"
)
#: Rights to a lock table (`service.db.locks`): to share the lock, to take it exclusively, or both.
_SHARES, _TAKES, _SHARES_AND_TAKES = Rights(add=_ALL), Rights(remove=True), Rights(add=_ALL, remove=True)
#: Only `migrate` changes the schema and its record; only an operator's commands create and revoke
#: keys. Subjects of an OpenID Connect issuer are recorded by `oidc_subject`.
_READ_BY_BOTH = dict.fromkeys(("alembic_version", "api_keys", "service_settings", *DERIVED), _READ)

#: Rights of an API process; none on tables not listed.
API: Mapping[str, Rights] = {
    **_READ_BY_BOTH,
    **dict.fromkeys(_GROWING, _READ),
    **dict.fromkeys(("decisions", "imports", "leases", "pointers", "recoveries", "tombstones", "versions"), _READ),
    **dict.fromkeys(("feed", "webhook_deliveries", "webhook_endpoints"), _READ),
    # A trigger sets the time.
    "api_key_uses": Rights(add="api_key_id", change="used_at"),
    "drills": Rights(add="request_id model cohort"),
    "lock_drills": _TAKES,
    "lock_intake": _SHARES,
    "lock_sessions": _TAKES,
    # A trigger sets the time.
    "log_checks": Rights(add="api_key_id size against_size", change="size against_size"),
    "outbox": Rights(add="request_id model traceparent"),
    "queued_joins": Rights(add=_ALL),
    "refused_requests": Rights(add="model api_key_id kind named reason"),
    "requests": Rights(
        add="id model kind count reference ciphertext api_key_id idempotency_key body_digest subject_commitments "
        "reference_commitment key_file key_place voucher"
    ),
    "sessions": Rights(add="token_hash key_id", change="seen_at", remove=True),
    "used_salts": Rights(add=_ALL),
}

#: Rights of the unlearner; none on tables not listed.
UNLEARNER: Mapping[str, Rights] = {
    **_READ_BY_BOTH,
    **dict.fromkeys(_GROWING, Rights(add=_ALL)),
    "decisions": Rights(change="event_id"),
    "drills": _READ,
    # The trigger of a move adds its event; no trigger adds the one for lateness.
    "feed": Rights(add="request_id api_key_id milestone status due_at", change="place due_at"),
    "imports": Rights(change="status refusal finished_at"),
    "leases": Rights(add=_ALL, change=_LEASE),
    "lock_feed": _TAKES,
    "lock_intake": _SHARES_AND_TAKES,
    "lock_log": _TAKES,
    "lock_totals": _TAKES,
    "log_checks": _READ,
    # Its rows are locked until the stream has them.
    "outbox": Rights(add="request_id model", change="created_at", remove=True),
    "pointers": Rights(add=_ALL, change="version fencing folder digest weights_sha256 moved_at"),
    # Removed by a trigger.
    "queued_joins": Rights(remove=True),
    "recoveries": Rights(add=_ALL, change="requests_failed"),
    "refused_requests": _READ,
    "requests": Rights(
        change="status swept_at taken_at batch_id applied_at completed_at failed_at guarantee repair explanation "
        "failure ciphertext key_file key_place already_deleted_by handled_at handled_by waits_for",
    ),
    # Void once what was deleted has joined again; in force once more when it is deleted anew.
    "tombstones": Rights(add=_ALL, change="request_id recovery_id rejoined_by"),
    "webhook_deliveries": Rights(
        add="endpoint_id event_id", change="attempts next_attempt_at delivered_at given_up_at answer", remove=True
    ),
    "webhook_endpoints": Rights(change="secret removed_at removal"),
    "versions": Rights(add=_ALL, change="finished_at durations_ms span_residual repair repair_version"),
}

#: Functions that run with the owner's rights.
FUNCTIONS = {
    API_ROLE: frozenset(
        {
            "request_cancel",
            "request_retry",
            "request_handle",
            "request_extend",
            "request_hold",
            "request_release",
            "oidc_subject",
        }
    ),
    UNLEARNER_ROLE: frozenset({"audit_fold"}),
}
TABLES = {API_ROLE: API, UNLEARNER_ROLE: UNLEARNER}


_ROLES = (API_ROLE, UNLEARNER_ROLE, AUDIT_ROLE)

_FACTS = text("""
    SELECT rolcreaterole OR rolsuper AS may_create,
           EXISTS (SELECT FROM pg_roles WHERE rolname = :role) AS exists
    FROM pg_roles WHERE rolname = current_user
""")
_OWN_RELATIONS = text("""
    SELECT relname, relkind IN ('v', 'm') AS is_view FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
      AND pg_has_role(current_user, relowner, 'USAGE')
    ORDER BY relname
""")
#: Limits on the length and idle time of a login's transaction, because others wait for its locks. A login can override
#: them. `transaction_timeout` exists from Postgres 17 on.
_LIMITS = {"idle_in_transaction_session_timeout": "60s", "transaction_timeout": "60s"}
_OWNED = text("""
    SELECT quote_ident(datname) AS database, quote_ident(current_schema()) AS schema,
           pg_has_role(current_user, datdba, 'USAGE') AS owns_database,
           pg_has_role(current_user, nspowner, 'USAGE') AS owns_schema,
           ARRAY(SELECT name FROM pg_settings WHERE name = ANY(:limits)) AS limits
    FROM pg_database, pg_namespace WHERE datname = current_database() AND nspname = current_schema()
""")
#: Callable functions with the owner's rights; trigger functions are never called directly.
_OWN_FUNCTIONS = text("""
    SELECT proname, oid::regprocedure::text FROM pg_proc
    WHERE pronamespace = current_schema()::regnamespace AND prosecdef AND prorettype <> 'trigger'::regtype
      AND pg_has_role(current_user, proowner, 'USAGE')
    ORDER BY 2
""")
#: Two databases of one server may run this concurrently.
_UNLESS_DONE = """
    DO $$ BEGIN
        {statement};
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END $$
"""
#: Before Postgres 16, every member may.
_MAY_BECOME = text("""
    SELECT pg_has_role(current_user, :role,
        CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END)
""")
_MAY_GRANT = text("SELECT pg_has_role(current_user, :role, 'MEMBER WITH ADMIN OPTION')")
_OWNS_TABLES = text("""
    SELECT bool_or(pg_has_role(session_user, relowner, 'MEMBER')) FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relname = ANY(:names)
""")
_IS_MEMBER = text("""
    SELECT coalesce(bool_or(pg_has_role(session_user, oid, 'MEMBER')), false) FROM pg_roles WHERE rolname = ANY(:roles)
""")


def grant(connection: Connection) -> None:
    """Grant the roles their rights on all of the caller's tables and views; create the roles if allowed.

    Also revokes default rights that no login needs, such as temporary tables, and limits the length of transactions.
    """
    _limit(connection)
    roles = [role for role in _ROLES if _is_there(connection, role)]
    for role in roles:
        if role != AUDIT_ROLE and not connection.scalar(_MAY_BECOME, {"role": role}):
            _give(connection, role)
    relations = {f'"{name}"': (name, is_view) for name, is_view in connection.execute(_OWN_RELATIONS).all()}
    if relations and roles:
        connection.exec_driver_sql(f"REVOKE ALL ON {', '.join(relations)} FROM {', '.join(roles)}")
    for role in roles:
        # One statement for all with the same rights: this runs at every start.
        given = {quoted: _rights(role, *relation) for quoted, relation in relations.items()}
        for rights in filter(None, dict.fromkeys(given.values())):
            names = ", ".join(name for name, own in given.items() if own == rights)
            connection.exec_driver_sql(f"GRANT {rights} ON {names} TO {role}")
    for name, signature in connection.execute(_OWN_FUNCTIONS).all():
        for role, called in FUNCTIONS.items():
            if role in roles and name in called:
                connection.exec_driver_sql(f"GRANT EXECUTE ON FUNCTION {signature} TO {role}")


def _limit(connection: Connection) -> None:
    """Revoke rights that no login needs, and limit transactions, as far as the caller owns schema and database."""
    owned = connection.execute(_OWNED, {"limits": [*_LIMITS]}).one()
    if owned.owns_schema:
        connection.exec_driver_sql(f"REVOKE CREATE ON SCHEMA {owned.schema} FROM PUBLIC")
    if owned.owns_database:
        connection.exec_driver_sql(f"REVOKE CREATE, TEMPORARY ON DATABASE {owned.database} FROM PUBLIC")
        for name in owned.limits:
            connection.exec_driver_sql(f"ALTER DATABASE {owned.database} SET {name} = '{_LIMITS[name]}'")


async def open_engine(url: str, role: str, *, pool_size: int = 10) -> AsyncEngine:
    """Return a pool of connections that work as `role`, or as the login of `url` if that may not assume it.

    Raises `Unavailable`, and `ConfigurationError` if Postgres refuses the login or another part of its URL.
    """
    asking = create_engine(url, pool_size=1)
    try:
        as_role = await available(asking, role)
    except DatabaseRefused as error:
        # While serving, this is an outage that the database's operator may end; at startup it is a wrong setting.
        raise ConfigurationError(error.for_operators, error.remedy) from None
    finally:
        await asking.dispose()
    return create_engine(url, pool_size=pool_size, role=as_role)


async def available(engine: AsyncEngine, role: str) -> str | None:
    """Return `role` if the engine's login may work as it, else None.

    Raises `Unavailable`, and `ConfigurationError` behind a pooler.
    """
    try:
        async with transaction(engine) as connection:
            await require_own_session(connection)
            await connection.exec_driver_sql(f"SET LOCAL ROLE {role}")
    except DBAPIError as error:
        if is_outage(error):
            raise
        return None
    return role


async def is_kept_to(connection: AsyncConnection, role: str) -> bool:
    """Return whether a connection's login can do no more than `role`, whatever role it assumes."""
    if await connection.scalar(_OWNS_TABLES, {"names": sorted(TABLES[role])}):
        return False
    others = sorted({*_ROLES} - {role, AUDIT_ROLE})
    return not await connection.scalar(_IS_MEMBER, {"roles": others})


def _is_there(connection: Connection, role: str) -> bool:
    """Create a role unless it exists; return whether it exists now."""
    facts = connection.execute(_FACTS, {"role": role}).one()
    if not facts.exists and facts.may_create:
        connection.exec_driver_sql(_UNLESS_DONE.format(statement=f"CREATE ROLE {role} NOLOGIN"))
    return bool(facts.exists or facts.may_create)


def _give(connection: Connection, role: str) -> None:
    """Let the caller work as `role`, if it may grant that."""
    if connection.scalar(_MAY_GRANT, {"role": role}):
        connection.exec_driver_sql(_UNLESS_DONE.format(statement=f"GRANT {role} TO CURRENT_USER"))


def _rights(role: str, name: str, is_view: bool) -> str:
    if is_view:
        return "SELECT"
    rights = TABLES.get(role, {}).get(name)
    return "" if rights is None else rights.sql()
