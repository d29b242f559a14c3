"""Batches, repairs and imports tell what tolerance judged them, and batches how long a factor may outlive them."""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; earlier ones were judged by 1e-8 and kept no factor."""
    for table, status in (("batches", "repair"), ("repairs", "status"), ("imports", "repair")):
        op.execute(
            f"""
            ALTER TABLE {table}
                ADD COLUMN repair_tolerance double precision,
                ADD CONSTRAINT {table}_tolerance_check CHECK (
                    repair_tolerance > 0 AND repair_tolerance <= 1e-06
                    AND ({status} <> 'converged' OR distance_bound_after_relative <= repair_tolerance)
                )
            """
        )
    op.execute(
        """
        ALTER TABLE batches
            ADD COLUMN factor_age_s double precision,
            ADD CONSTRAINT batches_factor_age_check CHECK (
                factor_age_s >= 0 AND factor_age_s < 'Infinity'::double precision
            )
        """
    )


def downgrade() -> None:
    """Drop them."""
    op.execute("ALTER TABLE batches DROP COLUMN factor_age_s")
    for table in ("imports", "repairs", "batches"):
        op.execute(f"ALTER TABLE {table} DROP COLUMN repair_tolerance")
