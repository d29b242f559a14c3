"""What API keys may do."""

from enum import StrEnum


class Scope(StrEnum):
    """What an API key may do."""

    DELETIONS_WRITE = "deletions:write"
    DELETIONS_READ = "deletions:read"
    PREDICTIONS_READ = "predictions:read"
    #: Beside `PREDICTIONS_READ`, without which it opens nothing: probabilities in full.
    PREDICTIONS_EXACT = "predictions:exact"
    AUDIT_READ = "audit:read"
