-- Where the key of a request's id list lies: in which file of slots, and at which place of it. Named until the key is
-- destroyed, which comes after its ciphertext is dropped.
ALTER TABLE requests
    ADD COLUMN key_file smallint CHECK (key_file >= 0),
    ADD COLUMN key_place integer CHECK (key_place > 0),
    ADD CONSTRAINT requests_key_slot_check CHECK ((key_file IS NULL) = (key_place IS NULL));

CREATE INDEX requests_keys_dropped ON requests (id) WHERE ciphertext IS NULL AND key_place IS NOT NULL;

CREATE FUNCTION requests_key_dropped() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('lethe_keys', 'dropped');
    RETURN NULL;
END
$$;

-- Whoever drops a ciphertext wakes the one that destroys its key.
CREATE TRIGGER requests_key_dropped AFTER UPDATE OF ciphertext ON requests
    FOR EACH ROW WHEN (OLD.ciphertext IS NOT NULL AND NEW.ciphertext IS NULL)
    EXECUTE FUNCTION requests_key_dropped();
