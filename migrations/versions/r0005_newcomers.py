"""Predictions of nodes outside the graph."""

from service.db.migrate import execute_files

revision = "r0005"
down_revision = "r0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take the scope for predictions of nodes outside the graph."""
    execute_files(__file__, "newcomers")
