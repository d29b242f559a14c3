ALTER TABLE api_keys
    -- Null: the key does not expire.
    ADD COLUMN expires_at timestamptz,
    -- The kinds of request that it may make; null: all.
    ADD COLUMN kinds text[] CHECK (cardinality(kinds) > 0
        AND kinds <@ ARRAY['node', 'edge', 'features', 'label', 'addition', 'correction']::text[]),
    -- The text that the last rotation replaced, and until when it is valid beside the new one.
    ADD COLUMN previous_hash bytea UNIQUE CHECK (octet_length(previous_hash) = 32),
    ADD COLUMN previous_until timestamptz,
    ADD CONSTRAINT api_keys_previous_check CHECK ((previous_hash IS NULL) = (previous_until IS NULL)),
    ADD CONSTRAINT api_keys_expires_at_bounded
        CHECK (expires_at >= '1970-01-01 00:00:00+00' AND expires_at < '9000-01-01 00:00:00+00'),
    ADD CONSTRAINT api_keys_previous_until_bounded
        CHECK (previous_until >= '1970-01-01 00:00:00+00' AND previous_until < '9000-01-01 00:00:00+00');

CREATE OR REPLACE FUNCTION api_key_may(asking uuid, needed text[]) RETURNS boolean LANGUAGE sql STABLE
    RETURN EXISTS (SELECT FROM api_keys WHERE id = asking AND revoked_at IS NULL AND scopes @> needed
        AND (expires_at IS NULL OR expires_at > now()));

-- The last use of each key, to a minute. A table of its own: a login that may change a row can also lock it, and every
-- request locks the row of its key.
CREATE TABLE api_key_uses (
    api_key_id uuid PRIMARY KEY REFERENCES api_keys (id),
    used_at timestamptz DEFAULT now() NOT NULL CONSTRAINT api_key_uses_used_at_bounded
        CHECK (used_at >= '1970-01-01 00:00:00+00' AND used_at < '9000-01-01 00:00:00+00')
);

CREATE FUNCTION api_key_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.used_at := now();
    RETURN NEW;
END
$$;

CREATE TRIGGER api_key_uses_dated BEFORE INSERT OR UPDATE ON api_key_uses
    FOR EACH ROW EXECUTE FUNCTION api_key_used();
