-- Who is signed in to the dashboard, and who tried in vain: only hashes of tokens and addresses are kept.
CREATE TABLE sessions (
    token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    key_id uuid NOT NULL REFERENCES api_keys (id),
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now()
);

-- Of the last minutes alone: what a crash of Postgres takes is no loss.
CREATE UNLOGGED TABLE sign_ins (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    address_hash bytea NOT NULL CHECK (octet_length(address_hash) = 32),
    begun_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX sign_ins_address ON sign_ins (address_hash, begun_at);

CREATE INDEX sign_ins_oldest ON sign_ins (begun_at)
