-- As in r0011, but scopes that are NULL, or a table of settings without its row, are refused too.
CREATE OR REPLACE FUNCTION oidc_subject(subject bytea, granted text[]) RETURNS SETOF api_keys LANGUAGE plpgsql AS $$
DECLARE
    new_id uuid := gen_random_uuid();
BEGIN
    IF (granted <@ (SELECT oidc_scopes FROM service_settings)) IS NOT TRUE THEN
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
