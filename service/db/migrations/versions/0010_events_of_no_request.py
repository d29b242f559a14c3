"""The log also tells what no request asked for, and of repairs that ended short of retraining."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_OF_REQUESTS = "('applied', 'repaired', 'completed', 'failed')"
_OF_NO_REQUEST = "('imported', 'recovered', 'log_key_added')"

UPGRADE = (
    """
    ALTER TABLE events
        ALTER COLUMN request_id DROP NOT NULL,
        DROP CONSTRAINT events_type_check,
        ADD CONSTRAINT events_type_check CHECK (type IN (
            'applied', 'repaired', 'not_repaired', 'completed', 'failed', 'imported', 'recovered', 'log_key_added'
        ))
    """,
    f"ALTER TABLE events ADD CONSTRAINT events_request_check CHECK ((request_id IS NULL) = (type IN {_OF_NO_REQUEST}))",
    "CREATE UNIQUE INDEX events_not_repaired_once ON events (request_id) WHERE type = 'not_repaired'",
    "CREATE INDEX events_of_no_request ON events (id) WHERE request_id IS NULL",
)

DOWNGRADE = (
    "DROP INDEX events_of_no_request, events_not_repaired_once",
    f"""
    ALTER TABLE events
        DROP CONSTRAINT events_request_check,
        DROP CONSTRAINT events_type_check,
        ADD CONSTRAINT events_type_check CHECK (type IN {_OF_REQUESTS}),
        ALTER COLUMN request_id SET NOT NULL
    """,
)


def upgrade() -> None:
    """Let events be of no request."""
    for statement in UPGRADE:
        op.execute(statement)


def downgrade() -> None:
    """Undo it; fails, changing nothing, once there are such events, which are never removed."""
    for statement in DOWNGRADE:
        op.execute(statement)
