-- Keys: those that callers present, stored as hashes, and those outside the database that it depends on.

-- Finite: a NaN would poison every audit query.
CREATE DOMAIN figure AS double precision CHECK (VALUE >= 0 AND VALUE < 'Infinity'::double precision);

CREATE DOMAIN hex_digest AS text CHECK (VALUE ~ '^[0-9a-f]{64}$');

CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'check_violation', TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME;
END
$$;

CREATE TABLE api_keys (
    id uuid PRIMARY KEY,
    name text NOT NULL,
    scopes text[] NOT NULL CHECK (cardinality(scopes) > 0
        AND scopes <@ ARRAY['deletions:write', 'deletions:read', 'predictions:read', 'predictions:exact',
            'audit:read']::text[]),
    hash bytea NOT NULL CHECK (octet_length(hash) = 32) UNIQUE,
    created_at timestamptz DEFAULT now() NOT NULL,
    revoked_at timestamptz,
    CONSTRAINT api_keys_named_check CHECK (name <> '')
);

CREATE UNIQUE INDEX api_keys_name_in_use ON api_keys (name) WHERE revoked_at IS NULL;

CREATE TRIGGER api_keys_revoked BEFORE UPDATE ON api_keys
    FOR EACH ROW WHEN (OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS DISTINCT FROM OLD.revoked_at)
    EXECUTE FUNCTION refuse('a revoked key stays revoked');

-- Whether an API key is valid and has all these scopes.
CREATE FUNCTION api_key_may(asking uuid, needed text[]) RETURNS boolean LANGUAGE sql STABLE
    RETURN EXISTS (SELECT FROM api_keys WHERE id = asking AND revoked_at IS NULL AND scopes @> needed);

-- Dashboard sessions, stored as token hashes only.
CREATE TABLE sessions (
    token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    key_id uuid NOT NULL REFERENCES api_keys (id),
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE vault_keys (
    name text PRIMARY KEY CHECK (name <> ''),
    fingerprint bytea NOT NULL CHECK (octet_length(fingerprint) = 16),
    registered_at timestamptz DEFAULT now() NOT NULL
);

CREATE TABLE tombstone_keys (
    number smallint PRIMARY KEY CHECK (number > 0),
    fingerprint bytea NOT NULL CHECK (octet_length(fingerprint) = 16)
);

CREATE TABLE log_keys (
    number smallint PRIMARY KEY CHECK (number > 0),
    public_key text NOT NULL,
    registered_at timestamptz DEFAULT now() NOT NULL
);

-- API key hashes depend on the pepper. Under a new pepper no key is valid, and none may become valid again with the old
-- one.
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

-- Salts given by callers, so that none is used twice. Stores only keyed hashes: not who gave them, when, or for what.
CREATE TABLE used_salts (
    hash bytea PRIMARY KEY CONSTRAINT used_salts_hash_size CHECK (octet_length(hash) = 32)
);
