"""${message}."""

from service.db.migrate import execute_files

revision = "${up_revision}"
down_revision = ${'"%s"' % down_revision if down_revision else None}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Run the SQL files named here, from the folder of the revision."""
    execute_files(__file__)
