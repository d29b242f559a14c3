-- The scope for predictions of nodes outside the graph.

ALTER TABLE api_keys DROP CONSTRAINT api_keys_scopes_check,
    ADD CONSTRAINT api_keys_scopes_check CHECK (cardinality(scopes) > 0
        AND scopes <@ ARRAY['deletions:write', 'deletions:read', 'predictions:read', 'predictions:exact',
            'predictions:new', 'predictions:all', 'audit:read', 'graph:write']::text[]);
