-- A process of Lethe vouches for each request that it takes in, with a key outside the database.
ALTER TABLE requests
    ADD COLUMN voucher bytea CHECK (octet_length(voucher) = 32),
    -- As many as LETHE_MAX_NODES_PER_REQUEST may allow: one row must not fill the queue of all API keys.
    ADD CONSTRAINT requests_count_most CHECK (count <= 100000),
    ADD CONSTRAINT requests_reference_length CHECK (char_length(reference) <= 200),
    ADD CONSTRAINT requests_idempotency_key_length CHECK (char_length(idempotency_key) <= 255),
    -- An edge with its salts is at most so long.
    ADD CONSTRAINT requests_ciphertext_length CHECK (octet_length(ciphertext) <= 16384::bigint * (count + 1));

ALTER TABLE decisions ADD CONSTRAINT decisions_reason_length CHECK (char_length(reason) <= 500);

ALTER TABLE drills ADD CONSTRAINT drills_model_length CHECK (char_length(model) <= 512);

ALTER TABLE outbox ADD CONSTRAINT outbox_model_length CHECK (char_length(model) <= 512);

ALTER TABLE refused_requests
    ADD CONSTRAINT refused_requests_model_length CHECK (char_length(model) <= 512),
    ADD CONSTRAINT refused_requests_named_most CHECK (named <= 100000),
    ADD CONSTRAINT refused_requests_reason_length CHECK (char_length(reason) <= 100)
