-- With the rights of the owner, as in the migrations before: a function that is replaced loses that.
DO $$
DECLARE
    trusted regprocedure;
BEGIN
    FOR trusted IN SELECT oid FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
        AND proname ~ '^requests_total_'
    LOOP
        EXECUTE format(
            'ALTER FUNCTION %s SECURITY DEFINER SET search_path = %I, pg_temp', trusted, current_schema());
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', trusted);
    END LOOP;
END
$$
