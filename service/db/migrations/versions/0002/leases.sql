-- What the holder of a lease is at, for processes that do not share its memory: as it last said.
ALTER TABLE leases
    ADD COLUMN phase text NOT NULL DEFAULT 'stopped' CHECK (phase <> ''),
    ADD COLUMN reason text,
    ADD COLUMN repair_progress jsonb CHECK (jsonb_typeof(repair_progress) = 'object'),
    ADD COLUMN device text,
    ADD COLUMN checks jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(checks) = 'array'),
    -- When a holder last said that it serves.
    ADD COLUMN served_at timestamptz
