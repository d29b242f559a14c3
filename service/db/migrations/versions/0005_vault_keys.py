"""Which keys outside the database it relies on, so that a lost one is noticed and not made anew."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of key fingerprints."""
    op.execute(
        """
        CREATE TABLE vault_keys (
            name text CONSTRAINT vault_keys_pkey PRIMARY KEY,
            fingerprint bytea NOT NULL,
            registered_at timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT vault_keys_name_check CHECK (name <> ''),
            CONSTRAINT vault_keys_fingerprint_check CHECK (octet_length(fingerprint) = 16)
        )
        """
    )


def downgrade() -> None:
    """Drop it; the next start takes the keys it finds for the right ones."""
    op.execute("DROP TABLE vault_keys")
