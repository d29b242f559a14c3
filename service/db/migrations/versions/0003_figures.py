"""The figures that the view of the audit lacked."""

from pathlib import Path

from alembic import op

revision = "0.3.0"
down_revision = "0.2.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replace the view by one that has them at its end."""
    op.get_bind().exec_driver_sql((Path(__file__).with_name("0003") / "audit.sql").read_text())
