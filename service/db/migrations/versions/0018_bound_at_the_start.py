"""Batches also tell how far the weights were from the optimum of the graph when they began.

What training, or an earlier repair, had left undone is part of what a repair moves, and no forgetting.
"""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of earlier batches it is not known."""
    op.execute(
        """
        ALTER TABLE batches
            ADD COLUMN distance_bound_start_relative double precision,
            ADD CONSTRAINT batches_start_check CHECK (
                distance_bound_start_relative >= 0 AND distance_bound_start_relative < 'Infinity'::double precision
            )
        """
    )


def downgrade() -> None:
    """Drop it."""
    op.execute("ALTER TABLE batches DROP COLUMN distance_bound_start_relative")
