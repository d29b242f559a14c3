"""Versions published with noise."""

from pathlib import Path

from alembic import op

revision = "0.5.0"
down_revision = "0.4.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add how a version is published, and the view that shows it."""
    for name in ("publication", "audit"):
        for statement in (Path(__file__).with_name("0005") / f"{name}.sql").read_text().split(";\n\n"):
            op.get_bind().exec_driver_sql(statement)
