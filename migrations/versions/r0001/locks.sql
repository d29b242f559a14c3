-- A lock is a table without rows: only logins with a right to the table can hold it. Any login can hold an advisory
-- lock.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['intake', 'log', 'feed', 'totals', 'drills', 'sessions'] LOOP
        EXECUTE format('CREATE TABLE %I (CONSTRAINT %I CHECK (false))', 'lock_' || name, 'lock_' || name || '_empty');
    END LOOP;
END
$$;
