"""Processes of their own: what is in each file of the folder beside this one, by noun."""

from service.db.migrate import execute_files

revision = "0.2.0"
down_revision = "0.1.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add all of it."""
    execute_files(__file__, "leases", "readers", "request_keys", "sessions", "rights")
