-- Subscribers to the feed, and the outbox: deliveries that are due to each, and past ones.

CREATE TABLE webhook_endpoints (
    id uuid PRIMARY KEY,
    url text NOT NULL CHECK (url ~ '^https?://'),
    -- Encrypted under a key outside the database; gone with the endpoint.
    secret bytea,
    created_at timestamptz DEFAULT now() NOT NULL,
    removed_at timestamptz,
    removal text,
    CONSTRAINT webhook_endpoints_removed_check CHECK ((removed_at IS NULL) = (secret IS NOT NULL)
        AND (removed_at IS NULL) = (removal IS NULL))
);

CREATE TABLE webhook_deliveries (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    endpoint_id uuid NOT NULL REFERENCES webhook_endpoints (id),
    event_id uuid NOT NULL REFERENCES feed (id),
    created_at timestamptz DEFAULT now() NOT NULL,
    attempts integer DEFAULT 0 NOT NULL CHECK (attempts >= 0),
    -- During a delivery attempt: when another process may try.
    next_attempt_at timestamptz DEFAULT now(),
    delivered_at timestamptz,
    given_up_at timestamptz,
    -- Result of the last attempt.
    answer text,
    CONSTRAINT webhook_deliveries_once UNIQUE (endpoint_id, event_id),
    CONSTRAINT webhook_deliveries_state_check CHECK (num_nonnulls(next_attempt_at, delivered_at, given_up_at) = 1)
);

CREATE INDEX webhook_deliveries_waiting ON webhook_deliveries (endpoint_id, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;

CREATE INDEX webhook_deliveries_given_up ON webhook_deliveries (created_at, id) WHERE given_up_at IS NOT NULL;

CREATE INDEX webhook_deliveries_newest ON webhook_deliveries (created_at, id);
