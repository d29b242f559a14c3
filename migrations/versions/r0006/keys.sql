ALTER TABLE api_keys
    -- Null: the key does not expire.
    ADD COLUMN expires_at timestamptz,
    -- The kinds of request that it may make; null: all.
    ADD COLUMN kinds text[] CHECK (cardinality(kinds) > 0
        AND kinds <@ ARRAY['node', 'edge', 'features', 'label', 'addition', 'correction']::text[]),
    -- The text that the last rotation replaced, and until when it is valid beside the new one.
    ADD COLUMN previous_hash bytea UNIQUE CHECK (octet_length(previous_hash) = 32),
    ADD COLUMN previous_until timestamptz,
    -- To the minute.
    ADD COLUMN used_at timestamptz,
    ADD CONSTRAINT api_keys_previous_check CHECK ((previous_hash IS NULL) = (previous_until IS NULL)),
    ADD CONSTRAINT api_keys_expires_check CHECK (expires_at > created_at AND expires_at < '9000-01-01'),
    ADD CONSTRAINT api_keys_until_check CHECK (previous_until < '9000-01-01');

CREATE OR REPLACE FUNCTION api_key_may(asking uuid, needed text[]) RETURNS boolean LANGUAGE sql STABLE
    RETURN EXISTS (SELECT FROM api_keys WHERE id = asking AND revoked_at IS NULL AND scopes @> needed
        AND (expires_at IS NULL OR expires_at > now()));

CREATE FUNCTION api_key_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.used_at := now();
    RETURN NEW;
END
$$;

-- Processes of the api may set this column, but not to a time of their choice.
CREATE TRIGGER api_keys_used BEFORE UPDATE OF used_at ON api_keys FOR EACH ROW EXECUTE FUNCTION api_key_used();
