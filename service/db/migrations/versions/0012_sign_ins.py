"""Failed attempts to sign in are limited as those of the interface are, and no longer counted here."""

from alembic import op

revision = "0.12.0"
down_revision = "0.11.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop their table."""
    op.get_bind().exec_driver_sql("DROP TABLE sign_ins")
