-- Searches filter by the deadline too.
ALTER TABLE request_search ADD COLUMN due_at timestamptz, ADD COLUMN ended_at timestamptz, ADD COLUMN ended_late boolean;

UPDATE request_search s SET (due_at, ended_at, ended_late) = ROW(r.due_at, r.ended_at, r.ended_late)
FROM requests r WHERE r.id = s.request_id;

ALTER TABLE request_search ALTER COLUMN due_at SET NOT NULL;

CREATE OR REPLACE FUNCTION request_search_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO request_search (request_id, api_key_id, received_at, status, kind, guarantee, repair, due_at, ended_at,
        ended_late)
    SELECT id, api_key_id, received_at, status, kind, guarantee, repair, due_at, ended_at, ended_late FROM added;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION request_search_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE request_search s SET (api_key_id, received_at, status, kind, guarantee, repair, due_at, ended_at, ended_late) =
        ROW(a.api_key_id, a.received_at, a.status, a.kind, a.guarantee, a.repair, a.due_at, a.ended_at, a.ended_late)
    FROM added a WHERE s.request_id = a.id
        AND (s.api_key_id, s.received_at, s.status, s.kind, s.guarantee, s.repair, s.due_at, s.ended_at, s.ended_late)
            IS DISTINCT FROM (a.api_key_id, a.received_at, a.status, a.kind, a.guarantee, a.repair, a.due_at,
                a.ended_at, a.ended_late);
    RETURN NULL;
END
$$
