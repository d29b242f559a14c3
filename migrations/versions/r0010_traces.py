"""The trace of the call that made a request goes with it."""

from service.db.migrate import execute_files

revision = "r0010"
down_revision = "r0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the call's span to the outbox."""
    execute_files(__file__, "outbox")
