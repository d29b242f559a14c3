"""Totals and open requests leave drills out, and a check of the log says from which size on it was checked."""

from service.db.migrate import execute_files

revision = "0.16.0"
down_revision = "0.15.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take drills out of what was counted, count none from now on, and add the column."""
    execute_files(__file__, "totals", "open", "log_checks", "rights")
