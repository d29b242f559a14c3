"""States of a deletion request, the transitions between them, and descriptions of the guarantees."""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class RequestStatus(StrEnum):
    """State of a request; see `TRANSITIONS`."""

    QUEUED = "queued"
    APPLIED = "applied"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Guarantee(StrEnum):
    """What holds for the weights after a request."""

    #: The weights lie in the span of the remaining nodes' features (the paper's guarantee).
    SPAN = "span"
    #: The weights are those of retraining, within a stated bound.
    RETRAINED = "retrained"
    #: Only the graph forgot: no features left, and the repair is pending, did not converge or is not wanted.
    GRAPH_ONLY = "graph_only"


class RepairPolicy(StrEnum):
    """Whether Lethe repairs a model after each batch; set per model by the operator."""

    #: Move the weights to the optimum of the remaining graph, and state a bound.
    ALWAYS = "always"
    #: Projection only.
    NEVER = "never"


class EventType(StrEnum):
    """Types of audit events. Most belong to a request; those in `UNREQUESTED` belong to the model or the log."""

    APPLIED = "applied"
    REPAIRED = "repaired"
    #: The repair of an applied request ended short of retraining, or was given up.
    NOT_REPAIRED = "not_repaired"
    COMPLETED = "completed"
    FAILED = "failed"
    #: A newly trained model replaced the served one.
    IMPORTED = "imported"
    #: `lethe recover` continued from a store and a database of different moments.
    RECOVERED = "recovered"
    #: From here on, another key also signs checkpoints.
    LOG_KEY_ADDED = "log_key_added"
    #: From this version on, published weights have noise, as promised.
    CERTIFIED = "certified"
    #: A failed request is settled: a later one deleted the same, or somebody settled it and explained how.
    HANDLED = "handled"
    #: A request's deadline was extended, for a stated reason.
    EXTENDED = "extended"
    #: A queued request was put on hold, for a stated reason.
    HELD = "held"
    #: The hold of a request ended.
    RELEASED = "released"


class Milestone(StrEnum):
    """Milestones of a request in the feed; triggers record those that a transition reaches."""

    #: Also recorded when a failed request is retried.
    ACCEPTED = "accepted"
    APPLIED = "applied"
    REPAIRED = "repaired"
    COMPLETED = "completed"
    FAILED = "failed"
    #: The deadline passed while the request was open.
    LATE = "late"
    #: Put on hold, and released again.
    HELD = "held"
    RELEASED = "released"


class Cause(StrEnum):
    """Cause of a model version."""

    #: A newly trained model replaced the served one.
    IMPORT = "import"
    #: Requests were applied.
    BATCH = "batch"
    #: A repair ended after its batches were committed.
    REPAIR = "repair"
    #: From this version on, published weights have noise, as promised.
    CERTIFICATION = "certification"
    #: `lethe recover` continued from a store and a database of different moments.
    RECOVERY = "recovery"


class ImportStatus(StrEnum):
    """Progress of a model import."""

    #: Its folder lies beside the served model's.
    PENDING = "pending"
    #: The model is committed; the replaced one may still be on disk.
    COMMITTED = "committed"
    #: The model is served, and the replaced one is erased from disk.
    COMPLETED = "completed"
    #: The model was refused; nothing changed.
    REFUSED = "refused"


#: Events without a request.
UNREQUESTED = (EventType.IMPORTED, EventType.RECOVERED, EventType.CERTIFIED, EventType.LOG_KEY_ADDED)

#: States with an audit, unless an earlier request had left nothing to do.
AUDITED = (RequestStatus.APPLIED, RequestStatus.COMPLETED)

#: Allowed next states of each state. A check in the database forbids the rest.
TRANSITIONS: dict[RequestStatus, frozenset[RequestStatus]] = {
    RequestStatus.QUEUED: frozenset(
        {RequestStatus.APPLIED, RequestStatus.COMPLETED, RequestStatus.FAILED, RequestStatus.CANCELLED}
    ),
    RequestStatus.APPLIED: frozenset({RequestStatus.COMPLETED}),
    RequestStatus.COMPLETED: frozenset(),
    RequestStatus.FAILED: frozenset({RequestStatus.QUEUED}),
    RequestStatus.CANCELLED: frozenset(),
}


#: The guarantees in a sentence.
GUARANTEES = {
    Guarantee.SPAN: (
        "The weights lie in the span of the remaining nodes' features. They are not those of a model retrained without "
        "the deleted data, and may still carry what training learned from it."
    ),
    Guarantee.RETRAINED: (
        "The weights are those of a model retrained without the deleted data, up to the distance that the bound states."
    ),
    Guarantee.GRAPH_ONLY: (
        "The deleted data has left the graph. The weights were trained with it, and are not those of a model retrained "
        "without it."
    ),
}
#: The same of a request by which something joined.
GUARANTEES_OF_JOINS = {
    Guarantee.RETRAINED: (
        "The weights are those of a model retrained with the new data, up to the distance that the bound states."
    ),
    Guarantee.GRAPH_ONLY: (
        "The new data is in the graph and in every prediction. The weights were trained without it, and are not those "
        "of a model retrained with it."
    ),
}


def guarantee_in_words(guarantee: Guarantee, *, joins: bool) -> str:
    """Describe a guarantee for a request by which something joins, or for a deletion."""
    return (GUARANTEES_OF_JOINS if joins else GUARANTEES)[guarantee]


#: The same on papers, for readers who have never seen a model.
IN_PLAIN_WORDS = {
    Guarantee.SPAN: (
        "The model was not trained again. It is a combination of the remaining data, and may still carry some of what "
        "it had learned from the deleted data."
    ),
    Guarantee.RETRAINED: (
        "The model was then corrected. It is now the one that training without this data would have given, up to a "
        "proven difference."
    ),
    Guarantee.GRAPH_ONLY: (
        "The model itself was trained with this data, and may still carry some of what it had learned from it."
    ),
}
IN_PLAIN_WORDS_OF_JOINS = {
    Guarantee.RETRAINED: (
        "The model then learned from this data. It is now the one that training with this data would have given, up to "
        "a proven difference."
    ),
    Guarantee.GRAPH_ONLY: "The model itself was trained without this data.",
}
#: The same for a request whose targets were all deleted already.
NOTHING_LEFT = "Another request has deleted everything that this one names. Its receipt says what was done."
#: The same if the earlier request is unknown.
NOTHING_LEFT_UNKNOWN = (
    "Everything that this request names had already been deleted. Only a receipt from that time says what was done: "
    "the database was restored from an older backup."
)


def noise_in_words(epsilon: float, delta: float, planned: int, mu: float) -> str:
    """Describe what noise in published weights hides and what it does not. The only text about it, used everywhere.

    `mu` belongs to one version. Between two equally likely cases, an observer of all `planned` versions is right with
    probability at most Phi(sqrt(planned) mu / 2); see `projector.certified.gaussian.success`.
    """
    success = math.ceil(500 * (1 + math.erf(mu * math.sqrt(planned / 8)))) / 10
    return (
        "Everything published about this model's weights, predictions included, is computed from weights with noise. "
        f"Nobody who sees all of it, for {planned:,} versions after a deletion, can tell whether the deleted data was "
        f"unlearned or was never in the training data, except with a stated advantage: right in at most {success:g} % "
        f"of cases, where guessing is right in 50 % (epsilon {epsilon:g}, delta {delta:g}). This does not hide who was "
        "deleted, nor when, nor what retraining without them reveals by itself. It does not cover versions published "
        "before it was turned on, nor parts of the model that were fixed earlier and do not change. The audit "
        "describes the weights without noise: publishing it would undo this. A later setting can promise less, or "
        "nothing, for earlier deletions as well."
    )


def noise_in_a_sentence(figures: Mapping[str, Any]) -> str | None:
    """Return `noise_in_words` for a version's audit figures; None if it is published without noise."""
    if figures.get("publication_mu") is None:
        return None
    names = ("publication_epsilon", "publication_delta", "publications_planned", "publication_mu")
    return noise_in_words(*(figures[name] for name in names))
