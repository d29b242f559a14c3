-- How a version is published with noise, and what opens the commitments to what is computed without it.

ALTER TABLE versions
    ADD COLUMN publication_epsilon double precision,
    ADD COLUMN publication_delta double precision,
    ADD COLUMN publications_planned integer,
    ADD COLUMN publication_mu double precision CHECK (publication_mu > 0),
    ADD COLUMN commitment_salt hex_digest,
    ADD CONSTRAINT versions_publication_check CHECK (num_nulls(
        publication_epsilon, publication_delta, publications_planned, publication_mu, commitment_salt) IN (0, 5)),
    DROP CONSTRAINT versions_cause_check,
    ADD CONSTRAINT versions_cause_check
        CHECK (cause IN ('import', 'batch', 'repair', 'certification', 'recovery'));

CREATE INDEX versions_published ON versions (model, number) WHERE publication_mu IS NOT NULL;


ALTER TABLE events
    ADD COLUMN opening jsonb CHECK (jsonb_typeof(opening) = 'object'),
    DROP CONSTRAINT events_type_check,
    ADD CONSTRAINT events_type_check CHECK (type IN (
        'applied', 'repaired', 'not_repaired', 'completed', 'failed', 'imported', 'recovered', 'certified',
        'log_key_added')),
    DROP CONSTRAINT events_request_check,
    ADD CONSTRAINT events_request_check
        CHECK ((request_id IS NULL) = (type IN ('imported', 'recovered', 'certified', 'log_key_added')));
