ALTER TABLE request_search ADD COLUMN held_at timestamptz;

CREATE OR REPLACE FUNCTION request_search_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE request_search s SET (api_key_id, received_at, status, kind, guarantee, repair, due_at, ended_at, ended_late,
        held_at) =
        ROW(a.api_key_id, a.received_at, a.status, a.kind, a.guarantee, a.repair, a.due_at, a.ended_at, a.ended_late,
            a.held_at)
    FROM added a WHERE s.request_id = a.id
        AND (s.api_key_id, s.received_at, s.status, s.kind, s.guarantee, s.repair, s.due_at, s.ended_at, s.ended_late,
            s.held_at) IS DISTINCT FROM (a.api_key_id, a.received_at, a.status, a.kind, a.guarantee, a.repair, a.due_at,
                a.ended_at, a.ended_late, a.held_at);
    RETURN NULL;
END
$$;
