"""The schema of Lethe 0.1.0: what is in each file of the folder beside this one, by noun."""

from service.db.migrate import execute_files

revision = "0.1.0"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all of it."""
    execute_files(__file__, "keys", "versions", "requests", "tombstones", "log", "drills", "audit")
