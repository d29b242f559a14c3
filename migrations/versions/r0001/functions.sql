-- Functions look names up where the tables are, whatever the search path of their caller, and never among temporary
-- tables that a caller made. The service works as roles that may write nothing that is derived here: functions that do so
-- have their owner's rights, and only the roles that `service.db.roles` names may call them. A function with a body in
-- SQL needs none of this.
DO $$
DECLARE
    own record;
BEGIN
    FOR own IN
        SELECT oid::regprocedure AS signature, proname ~ ('^(requests_total_|request_search_|requests_feed_|'
            'audit_fold$|vault_key_replace$|requests_set_due$|request_(cancel|retry|handle|extend)$)') AS is_trusted
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
