"""What a login of the database can write is bounded: what is in each file of the folder beside this one, by noun."""

from service.db.migrate import execute_files

revision = "0.13.0"
down_revision = "0.12.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add all of it."""
    execute_files(__file__, "locks", "requests", "log_checks", "bounds", "functions")
