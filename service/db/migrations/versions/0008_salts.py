"""The salts that callers gave, so that none is used twice."""

from alembic import op

revision = "0.8.0"
down_revision = "0.7.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a table of their keyed hashes alone: neither by whom, nor when, nor for what they were given."""
    op.get_bind().exec_driver_sql(
        "CREATE TABLE used_salts"
        " (hash bytea PRIMARY KEY CONSTRAINT used_salts_hash_size CHECK (octet_length(hash) = 32))"
    )
