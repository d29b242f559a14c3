-- The LETHE_HOME whose processes serve the model: those of two would answer from two publications.
ALTER TABLE leases ADD COLUMN home text CHECK (home ~ '^[0-9a-f]{32}$');
