"""What an API key may do. The CHECK of `api_keys.scopes` in `migrations/` has the same names."""

from enum import StrEnum


class Scope(StrEnum):
    """What an API key may do."""

    DELETIONS_WRITE = "deletions:write"
    DELETIONS_READ = "deletions:read"
    PREDICTIONS_READ = "predictions:read"
    #: Full probabilities. Requires one of the other scopes of predictions.
    PREDICTIONS_EXACT = "predictions:exact"
    #: Predictions of nodes outside the graph, with features chosen by the caller.
    PREDICTIONS_NEW = "predictions:new"
    #: All predictions at once, with the ids of all live nodes.
    PREDICTIONS_ALL = "predictions:all"
    AUDIT_READ = "audit:read"
    #: Additions and corrections.
    GRAPH_WRITE = "graph:write"
