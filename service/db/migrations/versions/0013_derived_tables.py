"""What triggers derive from requests is written by them alone, with the rights of the tables' owner.

The role that the service works as reads `request_search`, `audit_counts` and `audit_times` from here on, and writes
none of them (`service.db.roles`). Folding the totals, which it does now and then, is a function it may call.
"""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_TRIGGERS = (
    *(f"requests_total_{operation}" for operation in ("insert", "update", "delete")),
    *(f"request_search_{change}" for change in ("insert", "update", "delete", "measured", "corrected", "ended")),
)
_KEYS = {
    "audit_counts": "model, day, status, kind, guarantee, repair, unchanged",
    "audit_times": "model, day, step, class",
}
_FOLD = "".join(
    f"""
    WITH added AS (DELETE FROM {table} WHERE NOT folded RETURNING {key}, requests)
    INSERT INTO {table} ({key}, requests, folded)
    SELECT {key}, sum(requests), true FROM added GROUP BY {key} HAVING sum(requests) <> 0
    ON CONFLICT ({key}) WHERE folded DO UPDATE SET requests = {table}.requests + excluded.requests;
    """
    for table, key in _KEYS.items()
)


def upgrade() -> None:
    """Let the triggers' functions have their owner's rights, and nobody else use them."""
    # Names are looked up where the tables are, never among temporary ones that a caller has made.
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    op.execute(f"CREATE FUNCTION audit_fold() RETURNS void LANGUAGE plpgsql AS $$ BEGIN {_FOLD} END $$")
    for name in ("audit_fold", *_TRIGGERS):
        op.execute(f"ALTER FUNCTION {name}() SECURITY DEFINER SET search_path = {schema}, pg_temp")
        # A trigger on a table of one's own would hand it rows of one's own.
        op.execute(f"REVOKE EXECUTE ON FUNCTION {name}() FROM PUBLIC")


def downgrade() -> None:
    """Undo it; the application's role has its rights again once an earlier version migrates."""
    op.execute("DROP FUNCTION audit_fold()")
    for name in _TRIGGERS:
        op.execute(f"ALTER FUNCTION {name}() SECURITY INVOKER RESET search_path")
        op.execute(f"GRANT EXECUTE ON FUNCTION {name}() TO PUBLIC")
