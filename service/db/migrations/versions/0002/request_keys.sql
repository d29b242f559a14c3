-- Where the key of a request's id list lies: in which file of slots, and at which place of it.
ALTER TABLE requests
    ADD COLUMN key_file smallint CHECK (key_file >= 0),
    ADD COLUMN key_place integer CHECK (key_place > 0)
