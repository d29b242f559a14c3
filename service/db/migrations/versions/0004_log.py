"""The transparency log: leaves, the complete subtrees above them, signed checkpoints, and the keys that signed."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE leaves (
        index bigint CONSTRAINT leaves_pkey PRIMARY KEY,
        event_id bigint NOT NULL CONSTRAINT leaves_event_id_fkey REFERENCES events (id),
        data text NOT NULL,
        hash bytea NOT NULL,
        root bytea NOT NULL,
        CONSTRAINT leaves_event_id_key UNIQUE (event_id),
        CONSTRAINT leaves_index_check CHECK (index >= 0),
        CONSTRAINT leaves_hashes_check CHECK (octet_length(hash) = 32 AND octet_length(root) = 32)
    )
    """,
    """
    CREATE TABLE log_nodes (
        level smallint,
        position bigint,
        hash bytea NOT NULL,
        CONSTRAINT log_nodes_pkey PRIMARY KEY (level, position),
        CONSTRAINT log_nodes_place_check CHECK (level BETWEEN 1 AND 62 AND position >= 0),
        CONSTRAINT log_nodes_hash_check CHECK (octet_length(hash) = 32)
    )
    """,
    """
    CREATE TABLE checkpoints (
        id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT checkpoints_pkey PRIMARY KEY,
        size bigint NOT NULL,
        note text NOT NULL,
        signed_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT checkpoints_size_check CHECK (size >= 0)
    )
    """,
    """
    CREATE TABLE log_keys (
        number smallint CONSTRAINT log_keys_pkey PRIMARY KEY,
        public_key text NOT NULL,
        registered_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT log_keys_number_check CHECK (number > 0)
    )
    """,
    *(
        f"""
        CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}
            FOR EACH STATEMENT EXECUTE FUNCTION refuse('{table} are never changed')
        """
        for table in ("leaves", "log_nodes", "checkpoints", "log_keys")
    ),
    """
    CREATE FUNCTION events_check_logged() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NOT EXISTS (SELECT FROM leaves WHERE event_id = NEW.id) THEN
            RAISE EXCEPTION 'event % has no leaf in the log', NEW.id
                USING ERRCODE = 'check_violation', TABLE = 'events', CONSTRAINT = 'events_logged';
        END IF;
        RETURN NULL;
    END
    $$
    """,
    # At the commit: an event and its leaf are there together or not at all.
    """
    CREATE CONSTRAINT TRIGGER events_logged AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION events_check_logged()
    """,
    """
    ALTER TABLE requests
        ADD COLUMN subject_commitments bytea,
        ADD COLUMN reference_commitment bytea,
        ADD CONSTRAINT requests_commitments_check CHECK (
            octet_length(subject_commitments) = count * CASE kind WHEN 'edge' THEN 64 ELSE 32 END
            AND octet_length(reference_commitment) = 32
        )
    """,
)


def upgrade() -> None:
    """Create the log, empty, and room for each request's commitments."""
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    """Drop the log, with every leaf and checkpoint."""
    op.execute("ALTER TABLE requests DROP COLUMN subject_commitments, DROP COLUMN reference_commitment")
    op.execute("DROP TRIGGER events_logged ON events")
    op.execute("DROP FUNCTION events_check_logged()")
    op.execute("DROP TABLE leaves, log_nodes, checkpoints, log_keys")
