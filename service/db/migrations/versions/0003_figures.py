"""The figures that the view of the audit lacked."""

from service.db.migrate import execute_files

revision = "0.3.0"
down_revision = "0.2.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replace the view by one that has them at its end."""
    execute_files(__file__, "audit")
