"""How well each version predicts, and how much is left to train on."""

from service.db.migrate import execute_files

revision = "r0007"
down_revision = "r0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take the drift of each version."""
    execute_files(__file__, "drift")
