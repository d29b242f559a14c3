"""The schema of Lethe 0.1.0: what is in each file of the folder beside this one, by noun."""

from pathlib import Path

from alembic import op

revision = "0.1.0"
down_revision = None
branch_labels = None
depends_on = None

_FOLDER = Path(__file__).with_name("0001")
#: In an order in which each refers to what is there.
_FILES = ("keys", "versions", "requests", "tombstones", "log", "drills", "audit")


def upgrade() -> None:
    """Create all of it."""
    for name in _FILES:
        for statement in (_FOLDER / f"{name}.sql").read_text().split(";\n\n"):
            op.get_bind().exec_driver_sql(statement)
