-- Keys: those that callers present, known by hashes, and those outside the database that it relies on.

CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'check_violation', TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME;
END
$$;

CREATE TABLE api_keys (
    id uuid NOT NULL,
    name text NOT NULL,
    scopes text[] NOT NULL,
    hash bytea NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    revoked_at timestamptz,
    CONSTRAINT api_keys_pkey PRIMARY KEY (id),
    CONSTRAINT api_keys_named_check CHECK (name <> ''),
    CONSTRAINT api_keys_hash_check CHECK (octet_length(hash) = 32),
    CONSTRAINT api_keys_scopes_check CHECK (
        cardinality(scopes) > 0
        AND scopes <@ ARRAY['deletions:write', 'deletions:read', 'predictions:read', 'audit:read']::text[]
    ),
    CONSTRAINT api_keys_hash_key UNIQUE (hash)
);

CREATE UNIQUE INDEX api_keys_name_in_use ON api_keys (name) WHERE revoked_at IS NULL;

CREATE TRIGGER api_keys_revoked BEFORE UPDATE ON api_keys
    FOR EACH ROW WHEN (OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS DISTINCT FROM OLD.revoked_at)
    EXECUTE FUNCTION refuse('a revoked key stays revoked');

CREATE TABLE vault_keys (
    name text NOT NULL,
    fingerprint bytea NOT NULL,
    registered_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT vault_keys_pkey PRIMARY KEY (name),
    CONSTRAINT vault_keys_name_check CHECK (name <> ''),
    CONSTRAINT vault_keys_fingerprint_check CHECK (octet_length(fingerprint) = 16)
);

CREATE TABLE tombstone_keys (
    number smallint NOT NULL,
    fingerprint bytea NOT NULL,
    CONSTRAINT tombstone_keys_pkey PRIMARY KEY (number),
    CONSTRAINT tombstone_keys_number_check CHECK (number > 0),
    CONSTRAINT tombstone_keys_fingerprint_check CHECK (octet_length(fingerprint) = 16)
);

CREATE TABLE log_keys (
    number smallint NOT NULL,
    public_key text NOT NULL,
    registered_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT log_keys_pkey PRIMARY KEY (number),
    CONSTRAINT log_keys_number_check CHECK (number > 0)
);

-- API keys are known by hashes made with the pepper: with another one none is valid, and none must come back with the
-- old one.
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
$$;
