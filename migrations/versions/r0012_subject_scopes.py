"""Refuse scopes that cannot be compared with those in the settings."""

from pathlib import Path

from service.db.migrate import execute_files

revision = "r0012"
down_revision = "r0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replace the function that records a subject of the issuer."""
    execute_files(__file__, "subject_scopes")
    execute_files(str(Path(__file__).with_name("r0001_initial.py")), "functions")
