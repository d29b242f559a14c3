"""Versions published with noise."""

from service.db.migrate import execute_files

revision = "0.5.0"
down_revision = "0.4.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add how a version is published, and the view that shows it."""
    execute_files(__file__, "publication", "audit")
