"""The states of a deletion request and the moves between them."""

from enum import StrEnum


class RequestStatus(StrEnum):
    """How far a request has come; see `TRANSITIONS`."""

    QUEUED = "queued"
    APPLIED = "applied"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Guarantee(StrEnum):
    """What holds of the weights after a request."""

    #: The weights lie in the span of the remaining nodes' features (the paper's guarantee).
    SPAN = "span"
    #: The weights are those of retraining, within a stated bound.
    RETRAINED = "retrained"
    #: Only the graph forgot: an edge request on a model that is never repaired.
    GRAPH_ONLY = "graph_only"


class RepairPolicy(StrEnum):
    """Whether Lethe repairs a model after each batch; the operator's choice, per model."""

    #: The weights are brought to the optimum of the remaining graph, and a bound is stated.
    ALWAYS = "always"
    #: The projection alone.
    NEVER = "never"


class EventType(StrEnum):
    """What an audit event reports: of one request or, for those of `UNREQUESTED`, of the model or the log."""

    APPLIED = "applied"
    REPAIRED = "repaired"
    #: The repair that an applied request waited for ended short of retraining, or was given up.
    NOT_REPAIRED = "not_repaired"
    COMPLETED = "completed"
    FAILED = "failed"
    #: A newly trained model has taken the served one's place.
    IMPORTED = "imported"
    #: Store and database were not of the same moment, and `lethe recover` went on from what there was.
    RECOVERED = "recovered"
    #: Checkpoints are signed with another key from here on, beside those that signed before.
    LOG_KEY_ADDED = "log_key_added"
    #: From this version on, what is published has noise: as promised now.
    CERTIFIED = "certified"
    #: A request that failed is settled: a later one deleted the same, or somebody settled it otherwise and says how.
    HANDLED = "handled"
    #: A request is due later than it was, for a reason.
    EXTENDED = "extended"


class Milestone(StrEnum):
    """What the feed tells of a request; those that a move reaches are written by triggers."""

    #: Also when one that failed is tried again.
    ACCEPTED = "accepted"
    APPLIED = "applied"
    REPAIRED = "repaired"
    COMPLETED = "completed"
    FAILED = "failed"
    #: It was open when its deadline passed.
    LATE = "late"


class Cause(StrEnum):
    """What made a version of a model."""

    #: A newly trained model took the served one's place.
    IMPORT = "import"
    #: Requests were applied.
    BATCH = "batch"
    #: A repair ended after its batches were committed.
    REPAIR = "repair"
    #: Weights became a version that is published with noise, as promised from then on.
    CERTIFICATION = "certification"
    #: `lethe recover` went on from a store and a database that were not of the same moment.
    RECOVERY = "recovery"


class ImportStatus(StrEnum):
    """How far the import of a newly trained model has come."""

    #: Its folder lies beside the served model's.
    PENDING = "pending"
    #: It is the committed version; the replaced model may still be on the disk.
    COMMITTED = "committed"
    #: It is served, and the replaced model is gone from the disk.
    COMPLETED = "completed"
    #: It was not taken; nothing was changed.
    REFUSED = "refused"


#: Events that tell what no request asked for.
UNREQUESTED = (EventType.IMPORTED, EventType.RECOVERED, EventType.CERTIFIED, EventType.LOG_KEY_ADDED)

#: The states in which a request has an audit, unless an earlier request had left it nothing to do.
AUDITED = (RequestStatus.APPLIED, RequestStatus.COMPLETED)

#: From each state, the states that may follow it. The database's own check forbids the rest.
TRANSITIONS: dict[RequestStatus, frozenset[RequestStatus]] = {
    RequestStatus.QUEUED: frozenset(
        {RequestStatus.APPLIED, RequestStatus.COMPLETED, RequestStatus.FAILED, RequestStatus.CANCELLED}
    ),
    RequestStatus.APPLIED: frozenset({RequestStatus.COMPLETED}),
    RequestStatus.COMPLETED: frozenset(),
    RequestStatus.FAILED: frozenset({RequestStatus.QUEUED}),
    RequestStatus.CANCELLED: frozenset(),
}
