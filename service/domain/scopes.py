"""What an API key may do. The CHECK of `api_keys.scopes` in `migrations/` has the same names."""

from enum import StrEnum


class Scope(StrEnum):
    """What an API key may do."""

    DELETIONS_WRITE = "deletions:write"
    DELETIONS_READ = "deletions:read"
    PREDICTIONS_READ = "predictions:read"
    #: Full probabilities. Requires `PREDICTIONS_READ`.
    PREDICTIONS_EXACT = "predictions:exact"
    AUDIT_READ = "audit:read"
    #: Additions and corrections.
    GRAPH_WRITE = "graph:write"
