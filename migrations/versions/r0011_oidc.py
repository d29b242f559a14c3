"""Subjects of an OpenID Connect issuer, who act like holders of a key."""

from pathlib import Path

from service.db.migrate import execute_files

revision = "r0011"
down_revision = "r0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take subjects among the keys, and let answering processes record them within what a start allowed."""
    execute_files(__file__, "subjects")
    execute_files(str(Path(__file__).with_name("r0001_initial.py")), "functions")
