-- The keyed hashes of what was deleted.

CREATE TABLE tombstones (
    hash bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    model text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('node', 'edge', 'features')),
    key_number smallint NOT NULL REFERENCES tombstone_keys (number),
    request_id uuid REFERENCES requests (id),
    recovery_id uuid REFERENCES recoveries (id),
    created_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT tombstones_deleted_by_check CHECK (num_nonnulls(request_id, recovery_id) = 1)
);

CREATE INDEX tombstones_model ON tombstones (model);

CREATE INDEX tombstones_request ON tombstones (request_id);
