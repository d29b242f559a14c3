"""Deadlines of requests, and what becomes of those that fail: what is in each file of the folder beside this one."""

from pathlib import Path

from alembic import op

revision = "0.9.0"
down_revision = "0.8.0"
branch_labels = None
depends_on = None

_FOLDER = Path(__file__).with_name("0009")
#: In an order in which each refers to what is there.
_FILES = ("requests", "decisions", "totals", "search", "views", "rights")


def upgrade() -> None:
    """Add all of it."""
    for name in _FILES:
        for statement in (_FOLDER / f"{name}.sql").read_text().split(";\n\n"):
            op.get_bind().exec_driver_sql(statement)
