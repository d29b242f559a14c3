"""What a search looks at, one narrow row per request, which triggers keep; in place of an index for every filter.

Whatever is filtered, and however the filters contradict each other, a search reads at most this one table: its rows are
a fifth as wide as those of `requests`, and none is joined with another before it is known to be shown.
"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_OF_REQUEST = ("api_key_id", "received_at", "status", "kind", "guarantee", "repair")
_OF_AUDIT = ("injected_norm_before", "injected_norm_after")
_OF_BATCH = ("distance_bound_before_relative", "distance_bound_after_relative", "span_residual")

TABLE = (
    # Rows are updated a few times soon after they came: there is room for that within the page, so that no index is
    # written for it. None of the columns that change is in an index.
    """
    CREATE TABLE request_search (
        request_id uuid CONSTRAINT request_search_pkey PRIMARY KEY,
        api_key_id uuid NOT NULL,
        received_at timestamptz NOT NULL,
        status text NOT NULL,
        kind text NOT NULL,
        guarantee text,
        repair text,
        injected_norm_before double precision,
        injected_norm_after double precision,
        distance_bound_before_relative double precision,
        distance_bound_after_relative double precision,
        span_residual double precision
    ) WITH (fillfactor = 75)
    """,
    "CREATE INDEX request_search_newest ON request_search (received_at, request_id)",
    "CREATE INDEX request_search_newest_of_key ON request_search (api_key_id, received_at, request_id)",
)


def _listed(columns: tuple[str, ...], table: str) -> str:
    return ", ".join(f"{table}.{column}" for column in columns)


def _updated(columns: tuple[str, ...], table: str, rows: str, joined: str) -> str:
    """The update that takes `columns` over from `table`, where they differ."""
    return f"""
        UPDATE request_search s SET ({", ".join(columns)}) = ROW({_listed(columns, table)})
        FROM {rows} WHERE {joined}
            AND ({_listed(columns, "s")}) IS DISTINCT FROM ({_listed(columns, table)})
    """


_ADDED = f"""
    INSERT INTO request_search (request_id, {", ".join(_OF_REQUEST)})
    SELECT added.id, {_listed(_OF_REQUEST, "added")} FROM added
"""
# In one statement: each writes the row anew.
_MEASURED = f"""
    UPDATE request_search s SET ({", ".join((*_OF_AUDIT, *_OF_BATCH))}) =
        ROW({_listed(_OF_AUDIT, "a")}, {_listed(_OF_BATCH, "b")})
    FROM added a JOIN batches b ON b.id = a.batch_id WHERE s.request_id = a.request_id
"""
#: Trigger -> table, operation, transition tables, statements.
_TRIGGERS = {
    "request_search_insert": ("requests", "INSERT", "NEW TABLE AS added", (_ADDED,)),
    "request_search_update": (
        "requests",
        "UPDATE",
        "NEW TABLE AS added",
        (_updated(_OF_REQUEST, "added", "added", "s.request_id = added.id"),),
    ),
    "request_search_delete": (
        "requests",
        "DELETE",
        "OLD TABLE AS removed",
        ("DELETE FROM request_search s USING removed WHERE s.request_id = removed.id",),
    ),
    "request_search_measured": ("request_audits", "INSERT", "NEW TABLE AS added", (_MEASURED,)),
    "request_search_corrected": ("request_audits", "UPDATE", "NEW TABLE AS added", (_MEASURED,)),
    "request_search_ended": (
        "batches",
        "UPDATE",
        "NEW TABLE AS added",
        (
            _updated(
                _OF_BATCH,
                "b",
                "added b JOIN request_audits a ON a.batch_id = b.id",
                "s.request_id = a.request_id",
            ),
        ),
    ),
}
_FILL = f"""
    INSERT INTO request_search (request_id, {", ".join((*_OF_REQUEST, *_OF_AUDIT, *_OF_BATCH))})
    SELECT r.id, {_listed(_OF_REQUEST, "r")}, {_listed(_OF_AUDIT, "a")}, {_listed(_OF_BATCH, "b")}
    FROM requests r LEFT JOIN request_audits a ON a.request_id = r.id LEFT JOIN batches b ON b.id = a.batch_id
    ORDER BY r.received_at
"""
#: Indexes that nothing else was looked up by.
_REPLACED = {
    "requests_newest": "requests (received_at, id)",
    "requests_newest_of_key": "requests (api_key_id, received_at, id)",
    "requests_newest_by_kind": "requests (kind, received_at, id)",
    "requests_ended_as": "requests (repair, guarantee, kind, received_at, id) WHERE repair IS NOT NULL",
    **{f"request_audits_{figure}": f"request_audits ({figure}) WHERE {figure} IS NOT NULL" for figure in _OF_AUDIT},
    **{f"batches_{figure}": f"batches ({figure}) WHERE {figure} IS NOT NULL" for figure in _OF_BATCH},
}


def upgrade() -> None:
    """Create the table with what keeps it, and fill it; drop the indexes it replaces."""
    for statement in TABLE:
        op.execute(statement)
    for name, (table, operation, tables, statements) in _TRIGGERS.items():
        body = "".join(f"{statement};" for statement in statements)
        op.execute(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NULL; END $$")
        op.execute(
            f"CREATE TRIGGER {name} AFTER {operation} ON {table} REFERENCING {tables}"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {name}()"
        )
    # Only now: whoever made a trigger has waited for writers, and keeps others out until the migration is committed.
    op.execute(_FILL)
    op.execute(f"DROP INDEX {', '.join(_REPLACED)}")


def downgrade() -> None:
    """Undo it."""
    for name, definition in _REPLACED.items():
        op.execute(f"CREATE INDEX {name} ON {definition}")
    for name, (table, *_) in _TRIGGERS.items():
        op.execute(f"DROP TRIGGER {name} ON {table}")
        op.execute(f"DROP FUNCTION {name}()")
    op.execute("DROP TABLE request_search")
