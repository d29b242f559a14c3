-- Who is signed in to the dashboard: only hashes of tokens are kept.
CREATE TABLE sessions (
    token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    key_id uuid NOT NULL REFERENCES api_keys (id),
    form_token text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now()
)
