"""Since when a lease is held: what was taken up since then is in its holder's hands."""

from service.db.migrate import execute_files

revision = "0.14.0"
down_revision = "0.13.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add it."""
    execute_files(__file__, "leases")
