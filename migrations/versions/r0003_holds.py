"""Requests on hold, and what waits behind them."""

from pathlib import Path

from service.db.migrate import execute_files

revision = "r0003"
down_revision = "r0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Let queued requests be held, and count none of them as late."""
    execute_files(__file__, "holds", "feed", "search", "views")
    # They make the functions of this migration safe to call as they did those of the first.
    execute_files(str(Path(__file__).with_name("r0001_initial.py")), "functions")
