-- Since when the holder serves, and how often holders have failed in a row without having served for long.
ALTER TABLE leases
    ADD COLUMN serving_since timestamptz,
    ADD COLUMN failures integer DEFAULT 0 NOT NULL CHECK (failures >= 0),
    ADD COLUMN failing_since timestamptz
