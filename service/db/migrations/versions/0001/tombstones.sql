-- The keyed hashes of what was deleted.

CREATE TABLE tombstones (
    hash bytea NOT NULL,
    model text NOT NULL,
    kind text NOT NULL,
    key_number smallint NOT NULL,
    request_id uuid,
    recovery_id uuid,
    created_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT tombstones_pkey PRIMARY KEY (hash),
    CONSTRAINT tombstones_kind_check CHECK (kind IN ('node', 'edge', 'features')),
    CONSTRAINT tombstones_hash_check CHECK (octet_length(hash) = 32),
    CONSTRAINT tombstones_deleted_by_check CHECK (num_nonnulls(request_id, recovery_id) = 1),
    CONSTRAINT tombstones_key_number_fkey FOREIGN KEY (key_number) REFERENCES tombstone_keys (number),
    CONSTRAINT tombstones_request_id_fkey FOREIGN KEY (request_id) REFERENCES requests (id),
    CONSTRAINT tombstones_recovery_id_fkey FOREIGN KEY (recovery_id) REFERENCES recoveries (id)
);

CREATE INDEX tombstones_model ON tombstones (model);

CREATE INDEX tombstones_request ON tombstones (request_id);
