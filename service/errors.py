"""Typed errors of the service: what is wrong and what to do, as RFC 9457 fields."""

from typing import Any, ClassVar

from projector.errors import ExplainedError


class LetheError(ExplainedError):
    """Base of the service's own errors.

    `extra` holds further members of the problem document. A subclass with an HTTP status other than 500 sets `status`,
    `slug` and `title`.
    """

    status: ClassVar[int] = 500
    slug: ClassVar[str] = "internal-error"
    title: ClassVar[str] = "Internal error"
    #: A server's own message, for operators only: it may name logins and addresses.
    server_message: str = ""

    def __init__(self, detail: str, remedy: str, **extra: Any) -> None:
        super().__init__(detail, remedy)
        self.extra = extra

    @property
    def for_operators(self) -> str:
        """Return `detail`, followed by the server's own message."""
        return f"{self.detail} Its message: {self.server_message}" if self.server_message else self.detail


class ConfigurationError(LetheError):
    """A setting is missing or contradicts another."""


class AlreadyRunning(ConfigurationError):
    """Another process owns this LETHE_HOME."""


class EmbeddedServerError(LetheError):
    """A private Postgres or Valkey did not start."""


class InvalidRequest(LetheError):
    """The body or a parameter of a request is invalid."""

    status = 422
    slug = "invalid-request"
    title = "Invalid request"


class MalformedCursor(LetheError):
    """This server did not issue the page cursor."""

    status = 400
    slug = "malformed-cursor"
    title = "Malformed cursor"


class Unauthenticated(LetheError):
    """The API key is missing, unknown, revoked or expired."""

    status = 401
    slug = "unauthenticated"
    title = "API key required"


class MissingScope(LetheError):
    """The API key lacks a scope."""

    status = 403
    slug = "missing-scope"
    title = "Scope missing"


class KindNotAllowed(LetheError):
    """The API key may not make requests of this kind."""

    status = 403
    slug = "kind-not-allowed"
    title = "Kind of request not allowed"


class NodeLimitReached(LetheError):
    """The API key has reached its node limit for this model version."""

    status = 403
    slug = "node-limit-reached"
    title = "Node limit reached"


class NotFound(LetheError):
    """The request or node does not exist, or is hidden from this key."""

    status = 404
    slug = "not-found"
    title = "Not found"


class UnknownNodes(NotFound):
    """Some nodes are not in the model; `extra["unknown"]` lists all of them."""

    slug = "unknown-nodes"
    title = "Unknown nodes"


class UnknownEdges(NotFound):
    """Some edges are not in the graph, though their nodes are; `extra["unknown_edges"]` lists all of them."""

    slug = "unknown-edges"
    title = "Unknown edges"


class NodeDeleted(LetheError):
    """The node was deleted at a user's request."""

    status = 410
    slug = "node-deleted"
    title = "Node deleted"


class Conflict(LetheError):
    """The request's state, or an earlier use of its idempotency key, forbids the operation."""

    status = 409
    slug = "conflict"
    title = "Conflict"


class BodyTooLarge(LetheError):
    """The body or its number of nodes exceeds the limit."""

    status = 413
    slug = "too-large"
    title = "Request too large"


class QueueFull(LetheError):
    """Too many nodes are queued; `extra["retry_after"]` is in seconds."""

    status = 429
    slug = "queue-full"
    title = "Deletion queue full"


class TooManyAttempts(LetheError):
    """This address or key had too many recent failures; `extra["retry_after"]` is in seconds."""

    status = 429
    slug = "too-many-attempts"
    title = "Too many attempts"


class Unavailable(LetheError):
    """A required component does not respond."""

    status = 503
    slug = "unavailable"
    title = "Temporarily unavailable"


class DatabaseRefused(Unavailable):
    """Postgres refuses the connection settings. Retrying does not help until somebody corrects them."""


class DatabaseDamaged(Unavailable):
    """Postgres cannot read its own data: a page, an index or a file is damaged or missing."""

    slug = "database-damaged"
    title = "Database damaged"
    REMEDY: ClassVar[str] = (
        "Stop Lethe, check the disk and restore the database from a backup (docs/operations.md, A damaged database)."
    )

    def __init__(self, found: str, remedy: str = REMEDY) -> None:
        super().__init__(f"The database is damaged: {found}.", remedy)


class LeaseLost(LetheError):
    """Another unlearner holds the model's lease; nothing was written."""


class KeyMissing(LetheError):
    """The key folder lacks a key that the database refers to."""

    status = 503
    slug = "key-missing"
    title = "Key missing"


class StateMismatch(LetheError):
    """Store and database disagree, as after restoring only one of them from a backup."""

    #: Remedy when store and database are from different moments.
    RECOVER: ClassVar[str] = (
        "If there is no such backup, `./lethe recover` continues from what is left: it repeats all deletions "
        "that this database records, and names what is unknown."
    )


#: Most faults in one response. Each part is also cut, since a fault may name a member that the caller chose.
MOST_FAULTS = 20
