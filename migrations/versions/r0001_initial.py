"""The schema of the first release. Each file in the folder of the same revision defines one noun."""

from service.db.migrate import execute_files

revision = "r0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the schema; `bounds` and `functions` depend on the other files, so they come last."""
    execute_files(
        __file__,
        *("keys", "versions", "requests", "tombstones", "log", "decisions", "drills", "feed", "webhooks"),
        *("totals", "search", "views", "locks", "bounds", "functions"),
    )
