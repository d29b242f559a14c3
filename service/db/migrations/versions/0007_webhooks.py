"""The feed of events, and webhooks: what is in each file of the folder beside this one, by noun."""

from pathlib import Path

from alembic import op

revision = "0.7.0"
down_revision = "0.5.0"
branch_labels = None
depends_on = None

_FOLDER = Path(__file__).with_name("0007")
#: In an order in which each refers to what is there.
_FILES = ("feed", "webhooks")


def upgrade() -> None:
    """Add all of it."""
    for name in _FILES:
        for statement in (_FOLDER / f"{name}.sql").read_text().split(";\n\n"):
            op.get_bind().exec_driver_sql(statement)
