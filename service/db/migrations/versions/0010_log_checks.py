"""Who has checked the log and when, and what reports and lists are ordered by."""

from pathlib import Path

from alembic import op

revision = "0.10.0"
down_revision = "0.9.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add all of it."""
    for statement in (Path(__file__).with_name("0010") / "log_checks.sql").read_text().split(";\n\n"):
        op.get_bind().exec_driver_sql(statement)
