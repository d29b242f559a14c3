"""Totals and open requests leave drills out: their made-up nodes are nobody's."""

from service.db.migrate import execute_files

revision = "0.16.0"
down_revision = "0.15.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take drills out of what was counted, and count none from now on."""
    execute_files(__file__, "totals", "open", "rights")
