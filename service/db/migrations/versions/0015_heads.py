"""Readers need no leases any more, and the lease says in which LETHE_HOME the model is served."""

from service.db.migrate import execute_files

revision = "0.15.0"
down_revision = "0.14.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the former, add the latter."""
    execute_files(__file__, "readers", "leases")
