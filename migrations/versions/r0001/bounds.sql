-- Reject values that a driver cannot decode or that memory cannot hold. Times are between 1970 and 9000, as in the
-- interface, numbers are finite, and columns without a bound of their own hold at most 16 MiB.
DO $$
DECLARE
    bounded record;
BEGIN
    FOR bounded IN
        SELECT a.attrelid::regclass AS of_table, c.relname || '_' || a.attname || '_bounded' AS name, format(
            CASE a.atttypid::regtype::text
                WHEN 'timestamp with time zone' THEN '%I >= ''1970-01-01 00:00:00+00'' AND %1$I < ''9000-01-01 00:00:00+00'''
                WHEN 'double precision' THEN '%I > ''-Infinity'' AND %1$I < ''Infinity'''
                WHEN 'jsonb' THEN 'octet_length(%I::text) <= 16777216'
                ELSE 'octet_length(%I) <= 16777216'
            END, a.attname) AS bounds
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND a.attnum > 0
            AND NOT a.attisdropped AND a.attgenerated = ''
            -- Triggers derive these from bounded columns.
            AND c.relname NOT IN ('alembic_version', 'audit_counts', 'audit_times', 'request_search')
            AND pg_has_role(current_user, c.relowner, 'USAGE')
            AND (a.atttypid = 'timestamptz'::regtype OR NOT EXISTS (
                SELECT FROM pg_constraint k
                WHERE k.conrelid = a.attrelid AND k.contype IN ('c', 'f') AND k.conkey = ARRAY[a.attnum]
            ))
            AND a.atttypid IN ('timestamptz'::regtype, 'float8'::regtype, 'jsonb'::regtype, 'text'::regtype,
                'bytea'::regtype)
    LOOP
        EXECUTE format(
            'ALTER TABLE %s ADD CONSTRAINT %I CHECK (%s)', bounded.of_table, bounded.name, bounded.bounds);
    END LOOP;
END
$$;
