"""Additions, corrections and withdrawn labels."""

from pathlib import Path

from service.db.migrate import execute_files

revision = "r0002"
down_revision = "r0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take the new kinds of request, and what is measured of them."""
    execute_files(__file__, "additions")
    # They make the functions of this migration safe to call as they did those of the first.
    execute_files(str(Path(__file__).with_name("r0001_initial.py")), "functions")
