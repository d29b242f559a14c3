"""What the application's role may not do by itself: replacing a lost key's fingerprint is a function that checks.

It reads and adds to most tables since, and updates single columns only (`service.db.roles`). A revoked key stays
revoked, whoever asks.
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# Keys are known by hashes made with the pepper: with another one none is valid, and none must come back with the old.
_REPLACE = """
    CREATE FUNCTION vault_key_replace(lost text, made bytea) RETURNS integer LANGUAGE plpgsql AS $$
    DECLARE
        revoked integer := 0;
    BEGIN
        IF lost NOT IN ('api-pepper', 'body') THEN
            RAISE EXCEPTION 'nothing can take the place of the key %', lost
                USING ERRCODE = 'check_violation', TABLE = 'vault_keys', CONSTRAINT = 'vault_keys_replaceable';
        END IF;
        INSERT INTO vault_keys (name, fingerprint) VALUES (lost, made)
            ON CONFLICT (name) DO UPDATE SET fingerprint = excluded.fingerprint;
        IF lost = 'api-pepper' THEN
            UPDATE api_keys SET revoked_at = now() WHERE revoked_at IS NULL;
            GET DIAGNOSTICS revoked = ROW_COUNT;
        END IF;
        RETURN revoked;
    END
    $$
"""
_SIGNATURE = "vault_key_replace(text, bytea)"


def upgrade() -> None:
    """Create the function and the trigger."""
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    op.execute(_REPLACE)
    op.execute(f"ALTER FUNCTION {_SIGNATURE} SECURITY DEFINER SET search_path = {schema}, pg_temp")
    op.execute(f"REVOKE EXECUTE ON FUNCTION {_SIGNATURE} FROM PUBLIC")
    op.execute(
        """
        CREATE TRIGGER api_keys_revoked BEFORE UPDATE ON api_keys
            FOR EACH ROW WHEN (OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS DISTINCT FROM OLD.revoked_at)
            EXECUTE FUNCTION refuse('a revoked key stays revoked')
        """
    )


def downgrade() -> None:
    """Drop both; the application's role has its rights again once an earlier version migrates."""
    op.execute("DROP TRIGGER api_keys_revoked ON api_keys")
    op.execute(f"DROP FUNCTION {_SIGNATURE}")
