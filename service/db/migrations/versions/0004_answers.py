"""Probabilities in full are a right of their own, which every key keeps that was told them so far."""

from alembic import op

revision = "0.4.0"
down_revision = "0.3.0"
branch_labels = None
depends_on = None

_SCOPES = ("deletions:write", "deletions:read", "predictions:read", "predictions:exact", "audit:read")


def upgrade() -> None:
    """Add the scope, to the keys as well that may predict."""
    run = op.get_bind().exec_driver_sql
    run("ALTER TABLE api_keys DROP CONSTRAINT api_keys_scopes_check")
    run(
        "ALTER TABLE api_keys ADD CONSTRAINT api_keys_scopes_check CHECK (cardinality(scopes) > 0 "
        f"AND scopes <@ ARRAY[{', '.join(map(repr, _SCOPES))}]::text[])"
    )
    run(
        "UPDATE api_keys SET scopes = ARRAY(SELECT unnest(scopes || 'predictions:exact'::text) ORDER BY 1) "
        "WHERE 'predictions:read' = ANY (scopes)"
    )
