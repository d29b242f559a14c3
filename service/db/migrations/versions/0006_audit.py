"""Audit queries: totals by day that triggers keep, indexes, and views for tools that read SQL.

A change of requests adds rows to the totals and never changes one, so that no transaction waits for another's totals;
`service.db.audit_totals.fold` adds them up now and then. Times are counted in classes a fiftieth wide.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_STATUSES = "('queued', 'applied', 'completed', 'failed', 'cancelled')"

TABLES = (
    """
    ALTER TABLE batches ADD COLUMN live_nodes integer
        CONSTRAINT batches_live_nodes_check CHECK (live_nodes >= 0)
    """,
    f"""
    CREATE TABLE audit_counts (
        id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT audit_counts_pkey PRIMARY KEY,
        model text NOT NULL,
        day date NOT NULL,
        status text NOT NULL CONSTRAINT audit_counts_status_check CHECK (status IN {_STATUSES}),
        kind text NOT NULL,
        guarantee text,
        repair text,
        unchanged boolean,
        requests bigint NOT NULL,
        folded boolean NOT NULL DEFAULT false
    )
    """,
    """
    CREATE TABLE audit_times (
        id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT audit_times_pkey PRIMARY KEY,
        model text NOT NULL,
        day date NOT NULL,
        step text NOT NULL
            CONSTRAINT audit_times_step_check CHECK (step IN ('received', 'applied', 'completed', 'failed')),
        class smallint NOT NULL,
        requests bigint NOT NULL,
        folded boolean NOT NULL DEFAULT false
    )
    """,
    """
    CREATE UNIQUE INDEX audit_counts_folded
        ON audit_counts (model, day, status, kind, guarantee, repair, unchanged) NULLS NOT DISTINCT WHERE folded
    """,
    "CREATE INDEX audit_counts_unfolded ON audit_counts (id) WHERE NOT folded",
    "CREATE INDEX audit_counts_days ON audit_counts (model, day)",
    "CREATE UNIQUE INDEX audit_times_folded ON audit_times (model, day, step, class) WHERE folded",
    "CREATE INDEX audit_times_unfolded ON audit_times (id) WHERE NOT folded",
    "CREATE INDEX audit_times_days ON audit_times (model, step, day) INCLUDE (class, requests)",
    "CREATE INDEX requests_open ON requests (model, received_at) INCLUDE (id) WHERE status IN ('queued', 'applied')",
    "CREATE INDEX requests_applied_at ON requests (model, applied_at) INCLUDE (received_at)"
    " WHERE applied_at IS NOT NULL",
    "CREATE INDEX requests_completed_at ON requests (model, completed_at) INCLUDE (received_at)"
    " WHERE completed_at IS NOT NULL",
    "CREATE INDEX requests_failed_at ON requests (model, failed_at) INCLUDE (received_at) WHERE failed_at IS NOT NULL",
    "CREATE INDEX requests_reference ON requests (reference, received_at, id) WHERE reference IS NOT NULL",
    "CREATE INDEX batches_committed_at ON batches (model, committed_at)"
    " INCLUDE (rank_after, live_nodes, distance_bound_after_relative)",
)

FUNCTIONS = (
    # From a millisecond on, in steps of 2 %: the middle of a class is within 1 % of all that is in it.
    """
    CREATE FUNCTION audit_class(age interval) RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT ceil(ln(greatest(extract(epoch FROM age)::double precision, 0.001))
                    / ln(1.02::double precision))::smallint
    $$
    """,
    """
    CREATE FUNCTION audit_seconds(class smallint) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT 2 * power(1.02::double precision, class) / 2.02
    $$
    """,
)


def _totals(changes: str) -> str:
    """Statements that add the signed requests of a query to the totals."""
    return f"""
        INSERT INTO audit_counts (model, day, status, kind, guarantee, repair, unchanged, requests)
        SELECT c.model, (c.received_at AT TIME ZONE 'UTC')::date, c.status, c.kind, c.guarantee, c.repair,
               CASE WHEN c.applied_at IS NOT NULL THEN b.directions_removed = 0 END AS unchanged, sum(c.sign)
        FROM ({changes}) c LEFT JOIN batches b ON b.id = c.batch_id
        GROUP BY 1, 2, 3, 4, 5, 6, 7 HAVING sum(c.sign) <> 0;
        INSERT INTO audit_times (model, day, step, class, requests)
        SELECT c.model, (s.at AT TIME ZONE 'UTC')::date, s.step, audit_class(s.at - c.received_at), sum(c.sign)
        FROM ({changes}) c, LATERAL (VALUES
            ('received', c.received_at), ('applied', c.applied_at), ('completed', c.completed_at),
            ('failed', c.failed_at)
        ) s (step, at)
        WHERE s.at IS NOT NULL GROUP BY 1, 2, 3, 4 HAVING sum(c.sign) <> 0;
    """


def _changes(table: str, sign: int) -> str:
    return (
        f"SELECT {sign} AS sign, model, received_at, status, kind, guarantee, repair, batch_id, applied_at,"
        f" completed_at, failed_at FROM {table}"
    )


_OPERATIONS = {
    "insert": ("NEW TABLE AS added", _changes("added", 1)),
    "update": (
        "OLD TABLE AS removed NEW TABLE AS added",
        f"{_changes('added', 1)} UNION ALL {_changes('removed', -1)}",
    ),
    "delete": ("OLD TABLE AS removed", _changes("removed", -1)),
}

TRIGGERS = tuple(
    statement
    for operation, (tables, changes) in _OPERATIONS.items()
    for statement in (
        f"""
        CREATE FUNCTION requests_total_{operation}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            {_totals(changes)}
            RETURN NULL;
        END
        $$
        """,
        f"""
        CREATE TRIGGER requests_total_{operation} AFTER {operation.upper()} ON requests REFERENCING {tables}
            FOR EACH STATEMENT EXECUTE FUNCTION requests_total_{operation}()
        """,
    )
)

VIEWS: dict[str, str] = {}


def upgrade() -> None:
    """Create all of that, with the totals of the requests there are."""
    for statement in (*TABLES, *FUNCTIONS, *_totals(_changes("requests", 1)).split(";")[:2], *TRIGGERS):
        op.execute(statement)
    for name, query in VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS {query}")


def downgrade() -> None:
    """Drop all of that."""
    for name in reversed(VIEWS):
        op.execute(f"DROP VIEW {name}")
    for operation in _OPERATIONS:
        op.execute(f"DROP TRIGGER requests_total_{operation} ON requests")
        op.execute(f"DROP FUNCTION requests_total_{operation}()")
    op.execute("DROP TABLE audit_counts, audit_times")
    op.execute("DROP FUNCTION audit_class(interval)")
    op.execute("DROP FUNCTION audit_seconds(smallint)")
    op.execute(
        "DROP INDEX requests_open, requests_applied_at, requests_completed_at, requests_failed_at, requests_reference,"
        " batches_committed_at"
    )
    op.execute("ALTER TABLE batches DROP COLUMN live_nodes")
