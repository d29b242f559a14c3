"""API keys that expire, are rotated, make requests of some kinds only, and record their last use."""

from pathlib import Path

from service.db.migrate import execute_files

revision = "r0006"
down_revision = "r0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what a key may have besides scopes. Existing keys do not expire."""
    execute_files(__file__, "keys")
    execute_files(str(Path(__file__).with_name("r0001_initial.py")), "functions")
