-- Who answers predictions, and from which version: one is `applied` once none is left on an older one. A reader that
-- does not renew stops by itself, and the unlearner, having waited for that, takes its row away.
CREATE TABLE reader_leases (
    reader uuid PRIMARY KEY,
    model text NOT NULL,
    version bigint NOT NULL CHECK (version >= 0),
    renewed_at timestamptz NOT NULL
);

-- Answers the committed version, and renews the lease if that is the one served. The pointer cannot move until the lease
-- is written, and one that moves meanwhile is waited for.
CREATE FUNCTION reader_lease_renew(renewing uuid, of_model text, served text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    pointed pointers%ROWTYPE;
BEGIN
    -- Whatever the server's default: a lease must not be forgotten before it has run out.
    SET LOCAL synchronous_commit = on;
    SELECT * INTO pointed FROM pointers WHERE model = of_model FOR SHARE;
    IF pointed.folder = served THEN
        INSERT INTO reader_leases (reader, model, version, renewed_at)
            VALUES (renewing, of_model, pointed.version, clock_timestamp())
            ON CONFLICT (reader) DO UPDATE SET version = excluded.version, renewed_at = excluded.renewed_at;
    END IF;
    RETURN pointed.folder;
END
$$;

CREATE FUNCTION reader_lease_end(ending uuid) RETURNS void LANGUAGE sql AS $$
    DELETE FROM reader_leases WHERE reader = ending
$$;

CREATE FUNCTION pointer_told() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('lethe_pointers', NEW.model);
    RETURN NULL;
END
$$;

CREATE TRIGGER pointers_told AFTER INSERT OR UPDATE ON pointers FOR EACH ROW EXECUTE FUNCTION pointer_told();

CREATE FUNCTION reader_told() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'UPDATE' OR NEW.version <> OLD.version THEN
        PERFORM pg_notify('lethe_readers', coalesce(NEW.model, OLD.model));
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER reader_leases_told AFTER UPDATE OR DELETE ON reader_leases
    FOR EACH ROW EXECUTE FUNCTION reader_told();

-- A reader changes nothing of the pointer, though it locks it: with the owner's rights.
DO $$
DECLARE
    trusted regprocedure;
BEGIN
    FOREACH trusted IN ARRAY ARRAY[
        'reader_lease_renew(uuid, text, text)', 'reader_lease_end(uuid)']::regprocedure[]
    LOOP
        EXECUTE format(
            'ALTER FUNCTION %s SECURITY DEFINER SET search_path = %I, pg_temp', trusted, current_schema());
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', trusted);
    END LOOP;
END
$$
