"""Since when a request waits, and an unlearner that fails again and again."""

from service.db.migrate import execute_files

revision = "0.11.0"
down_revision = "0.10.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both."""
    execute_files(__file__, "requests", "leases")
