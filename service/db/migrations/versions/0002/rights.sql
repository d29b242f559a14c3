-- What a process of the api may only ask for: it changes no request. Whether it is too late is seen here, and nowhere else.
CREATE FUNCTION request_cancel(asked uuid, of_key uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE requests SET status = 'cancelled', cancelled_at = now(), ciphertext = NULL, subject_commitments = NULL,
        reference_commitment = NULL
    WHERE id = asked AND status = 'queued' AND batch_id IS NULL AND taken_at IS NULL
        AND (of_key IS NULL OR api_key_id = of_key);
    IF FOUND THEN
        DELETE FROM outbox WHERE request_id = asked;
        RETURN true;
    END IF;
    RETURN false;
END
$$;

CREATE FUNCTION request_retry(asked uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE requests SET status = 'queued', failed_at = NULL, failure = NULL, swept_at = NULL, taken_at = NULL
    WHERE id = asked AND status = 'failed' AND ciphertext IS NOT NULL;
    IF FOUND THEN
        INSERT INTO outbox (request_id, model) SELECT id, model FROM requests WHERE id = asked ON CONFLICT DO NOTHING;
        RETURN true;
    END IF;
    RETURN false;
END
$$;

-- With the rights of the owner, as what derives from requests.
DO $$
DECLARE
    trusted regprocedure;
BEGIN
    FOR trusted IN SELECT oid FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
        AND proname IN ('request_cancel', 'request_retry')
    LOOP
        EXECUTE format(
            'ALTER FUNCTION %s SECURITY DEFINER SET search_path = %I, pg_temp', trusted, current_schema());
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', trusted);
    END LOOP;
END
$$
