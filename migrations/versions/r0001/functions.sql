-- Functions resolve names where the tables are, regardless of the caller's search path, and never among a caller's
-- temporary tables. The service's roles may not write derived data. Functions that write it run with their owner's
-- rights, and only the roles that `service.db.roles` names may call them. A function with an SQL body needs none of
-- this.
DO $$
DECLARE
    own record;
BEGIN
    FOR own IN
        SELECT oid::regprocedure AS signature, proname ~ ('^(requests_total_|request_search_|requests_feed_|'
            'audit_fold$|oidc_subject$|vault_key_replace$|requests_(set_due|go_on)$|'
            'request_(cancel|retry|handle|extend|hold|release)$)') AS is_trusted
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
$$;
