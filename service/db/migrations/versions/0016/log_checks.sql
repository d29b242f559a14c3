-- From how many leaves on somebody has found that the log only grew; null where that was not recorded yet.
ALTER TABLE log_checks ADD COLUMN against_size bigint CHECK (against_size >= 0)
