"""Who has checked the log and when, and what reports and lists are ordered by."""

from service.db.migrate import execute_files

revision = "0.10.0"
down_revision = "0.9.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add all of it."""
    execute_files(__file__, "log_checks")
