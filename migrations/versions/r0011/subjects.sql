ALTER TABLE api_keys
    -- A subject of the OpenID Connect issuer. Its hash is of issuer and subject, and no text has it.
    ADD COLUMN is_subject boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT api_keys_subjects_expire
        CHECK (NOT is_subject OR (expires_at IS NOT NULL AND previous_hash IS NULL AND kinds IS NULL));

-- The scopes that the issuer's tokens can grant, as the last start wrote them; none without an issuer.
ALTER TABLE service_settings ADD COLUMN oidc_scopes text[] NOT NULL DEFAULT '{}';

-- Record that a token of this subject was verified: it is valid for a day, with the scopes of its tokens since it was
-- last invalid. Returns no row for a revoked subject. Its name is random, and so is its id, which the log repeats.
CREATE FUNCTION oidc_subject(subject bytea, granted text[]) RETURNS SETOF api_keys LANGUAGE plpgsql AS $$
DECLARE
    new_id uuid := gen_random_uuid();
BEGIN
    IF NOT granted <@ (SELECT oidc_scopes FROM service_settings) THEN
        RAISE EXCEPTION 'the issuer cannot grant these scopes'
            USING ERRCODE = 'check_violation', TABLE = 'api_keys', CONSTRAINT = 'api_keys_subjects_granted';
    END IF;
    RETURN QUERY INSERT INTO api_keys AS known (id, name, scopes, hash, expires_at, is_subject)
        VALUES (new_id, 'oidc ' || left(new_id::text, 13), granted, subject, now() + interval '1 day', true)
        ON CONFLICT (hash) DO UPDATE SET expires_at = excluded.expires_at,
            scopes = CASE WHEN known.expires_at > now() THEN ARRAY(
                SELECT DISTINCT unnest(known.scopes || excluded.scopes) ORDER BY 1) ELSE excluded.scopes END
            WHERE known.is_subject AND known.revoked_at IS NULL
        RETURNING known.*;
END
$$;
