"""Deadlines of requests, and what becomes of those that fail: what is in each file of the folder beside this one."""

from service.db.migrate import execute_files

revision = "0.9.0"
down_revision = "0.8.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add all of it."""
    execute_files(__file__, "requests", "decisions", "totals", "search", "views", "rights")
