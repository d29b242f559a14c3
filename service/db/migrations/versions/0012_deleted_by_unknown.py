"""A request may find everything deleted by one that this database, restored from an older backup, does not know."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_DROP = "DROP CONSTRAINT requests_already_deleted_by_check"
_ADD = "ADD CONSTRAINT requests_already_deleted_by_check CHECK"
_WITHOUT_WORK = "(status = 'completed' AND batch_id IS NULL) AND already_deleted_by <> id"

UPGRADE = (
    f"""
    ALTER TABLE requests
        ADD COLUMN deleted_by_unknown boolean NOT NULL DEFAULT false,
        {_DROP},
        {_ADD} ((already_deleted_by IS NOT NULL OR deleted_by_unknown) = {_WITHOUT_WORK})
    """,
)

DOWNGRADE = (
    f"""
    ALTER TABLE requests
        {_DROP},
        {_ADD} ((already_deleted_by IS NOT NULL) = {_WITHOUT_WORK}),
        DROP COLUMN deleted_by_unknown
    """,
)


def upgrade() -> None:
    """Let a request be completed without work and without an earlier one's id."""
    for statement in UPGRADE:
        op.execute(statement)


def downgrade() -> None:
    """Undo it; fails, changing nothing, once there are such requests."""
    for statement in DOWNGRADE:
        op.execute(statement)
