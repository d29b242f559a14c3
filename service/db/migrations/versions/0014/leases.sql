-- When the lease was acquired last, by the same holder too.
ALTER TABLE leases ADD COLUMN held_since timestamptz
    CONSTRAINT leases_held_since_bounded CHECK (held_since >= '1970-01-01 00:00:00+00' AND held_since < '9000-01-01 00:00:00+00')
