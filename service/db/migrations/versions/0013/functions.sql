-- Their names are resolved now, and not by the search path of whoever calls them; unlike a function with a search path of
-- its own, such a one is still made part of the query that calls it.
CREATE OR REPLACE FUNCTION audit_class(age interval) RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ceil(ln(greatest(extract(epoch FROM age)::double precision, 0.001)) / ln(1.02::double precision))::smallint;

CREATE OR REPLACE FUNCTION audit_seconds(class smallint) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN 2 * power(1.02::double precision, class) / 2.02;

-- Whether an API key is valid and has all these scopes.
CREATE FUNCTION api_key_may(asking uuid, needed text[]) RETURNS boolean LANGUAGE sql STABLE
    RETURN EXISTS (SELECT FROM api_keys WHERE id = asking AND revoked_at IS NULL AND scopes @> needed);

DROP FUNCTION request_retry(uuid);

-- As before, for a key that the route would let do so; null for any other. Without audit:read, its own requests alone.
CREATE OR REPLACE FUNCTION request_cancel(asked uuid, of_key uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT api_key_may(of_key, '{deletions:write}') THEN
        RETURN NULL;
    END IF;
    UPDATE requests SET status = 'cancelled', cancelled_at = now(), ciphertext = NULL, subject_commitments = NULL,
        reference_commitment = NULL
    WHERE id = asked AND status = 'queued' AND batch_id IS NULL AND taken_at IS NULL
        AND (api_key_id = of_key OR api_key_may(of_key, '{audit:read}'));
    IF FOUND THEN
        DELETE FROM outbox WHERE request_id = asked;
        RETURN true;
    END IF;
    RETURN false;
END
$$;

CREATE FUNCTION request_retry(asked uuid, of_key uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT api_key_may(of_key, '{deletions:write,audit:read}') THEN
        RETURN NULL;
    END IF;
    UPDATE requests SET status = 'queued', failed_at = NULL, failure = NULL, swept_at = NULL, taken_at = NULL
    WHERE id = asked AND status = 'failed' AND ciphertext IS NOT NULL;
    IF FOUND THEN
        INSERT INTO outbox (request_id, model) SELECT id, model FROM requests WHERE id = asked ON CONFLICT DO NOTHING;
        RETURN true;
    END IF;
    RETURN false;
END
$$;

CREATE OR REPLACE FUNCTION request_handle(asked uuid, of_key uuid, why text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT api_key_may(of_key, '{deletions:write,audit:read}') THEN
        RETURN NULL;
    END IF;
    UPDATE requests SET handled_at = now(), ciphertext = NULL
    WHERE id = asked AND status = 'failed' AND handled_at IS NULL;
    IF FOUND THEN
        INSERT INTO decisions (request_id, type, reason, api_key_id) VALUES (asked, 'handled', why, of_key);
        PERFORM pg_notify('lethe_decisions', '');
        RETURN true;
    END IF;
    RETURN false;
END
$$;

-- A deadline that no calendar has is refused by the bounds of the columns.
CREATE OR REPLACE FUNCTION request_extend(asked uuid, of_key uuid, until timestamptz, why text) RETURNS boolean
    LANGUAGE plpgsql AS $$
BEGIN
    IF NOT api_key_may(of_key, '{deletions:write,audit:read}') THEN
        RETURN NULL;
    END IF;
    UPDATE requests SET due_at = until
    WHERE id = asked AND ended_at IS NULL AND due_at >= now() AND due_at < until;
    IF FOUND THEN
        INSERT INTO decisions (request_id, type, reason, due_at, api_key_id)
            VALUES (asked, 'extended', why, until, of_key);
        PERFORM pg_notify('lethe_decisions', '');
        RETURN true;
    END IF;
    RETURN false;
END
$$;

-- Every function looks names up where the tables are, whatever the search path of its caller; these with the owner's rights.
DO $$
DECLARE
    own record;
BEGIN
    FOR own IN
        SELECT oid::regprocedure AS signature, proname ~ '^request_(cancel|retry|handle|extend)$' AS is_trusted
        FROM pg_proc
        WHERE pronamespace = current_schema()::regnamespace AND prosqlbody IS NULL
            AND pg_has_role(current_user, proowner, 'USAGE')
            AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_proc.oid AND deptype = 'e')
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', own.signature, current_schema());
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', own.signature);
        IF own.is_trusted THEN
            EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER', own.signature);
        END IF;
    END LOOP;
END
$$
