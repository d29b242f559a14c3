"""Typed errors of the service; each says what was wrong and what to do (RFC 9457 fields)."""

from typing import Any, ClassVar

from projector.errors import ExplainedError


class LetheError(ExplainedError):
    """Base of the service's own errors.

    `extra` holds further members of the problem document. Subclasses with another HTTP status than 500
    fix it, the type's slug and the title.
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
        """`detail`, followed by the server's own message."""
        return f"{self.detail} Its message: {self.server_message}" if self.server_message else self.detail


class ConfigurationError(LetheError):
    """A setting is missing or contradicts another."""


class AlreadyRunning(ConfigurationError):
    """Another process owns this LETHE_HOME."""


class EmbeddedServerError(LetheError):
    """A private Postgres or Valkey could not be started."""


class InvalidRequest(LetheError):
    """The body or a parameter of a request is not what the interface takes."""

    status = 422
    slug = "invalid-request"
    title = "Invalid request"


class MalformedCursor(LetheError):
    """A page cursor that this server did not issue."""

    status = 400
    slug = "malformed-cursor"
    title = "Malformed cursor"


class Unauthenticated(LetheError):
    """No API key, or one that is unknown or revoked."""

    status = 401
    slug = "unauthenticated"
    title = "API key required"


class MissingScope(LetheError):
    """The API key may not do this."""

    status = 403
    slug = "missing-scope"
    title = "Scope missing"


class NodeLimitReached(LetheError):
    """The API key was told of as many nodes of this version of the model as it may be."""

    status = 403
    slug = "node-limit-reached"
    title = "Node limit reached"


class NotFound(LetheError):
    """No such request or node, as far as this key may know."""

    status = 404
    slug = "not-found"
    title = "Not found"


class UnknownNodes(NotFound):
    """Some named nodes are not in the model; `extra["unknown"]` lists all of them."""

    slug = "unknown-nodes"
    title = "Unknown nodes"


class UnknownEdges(NotFound):
    """Some named edges are not in the graph, though their nodes are; `extra["unknown_edges"]` lists all of them."""

    slug = "unknown-edges"
    title = "Unknown edges"


class NodeDeleted(LetheError):
    """The node was deleted at a user's request."""

    status = 410
    slug = "node-deleted"
    title = "Node deleted"


class Conflict(LetheError):
    """The request's state, or an earlier use of the same idempotency key, forbids this."""

    status = 409
    slug = "conflict"
    title = "Conflict"


class BodyTooLarge(LetheError):
    """The body, or the number of nodes in it, is over the limit."""

    status = 413
    slug = "too-large"
    title = "Request too large"


class QueueFull(LetheError):
    """Too many nodes wait already; `extra["retry_after"]` is in seconds."""

    status = 429
    slug = "queue-full"
    title = "Deletion queue full"


class TooManyAttempts(LetheError):
    """Too much went wrong for this address or key lately; `extra["retry_after"]` is in seconds."""

    status = 429
    slug = "too-many-attempts"
    title = "Too many attempts"


class Unavailable(LetheError):
    """A part that this needs does not answer at present."""

    status = 503
    slug = "unavailable"
    title = "Temporarily unavailable"


class DatabaseRefused(Unavailable):
    """Postgres refuses the connection settings: somebody must correct them, and waiting does not help."""


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
    """A key that the database refers to is not in the key folder."""

    status = 503
    slug = "key-missing"
    title = "Key missing"


class StateMismatch(LetheError):
    """Store and database disagree, as after restoring one of them from a backup."""

    #: What to do when the two are not of the same moment.
    RECOVER: ClassVar[str] = (
        "If there is no such backup, `./lethe recover` continues from what is left: it repeats all deletions "
        "that this database records, and names what is unknown."
    )


#: Faults that one answer lists, and the longest part of each: what names a fault may be a member that the caller named.
MOST_FAULTS = 20
