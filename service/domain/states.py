"""The states of a deletion request and the moves between them, and what guarantees mean, in words."""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any


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


#: What holds of the weights, in a sentence.
GUARANTEES = {
    Guarantee.SPAN: (
        "The weights lie in the span of the remaining nodes' features. They are not those of a model retrained without "
        "what was deleted, and may still carry what training learned from it."
    ),
    Guarantee.RETRAINED: (
        "The weights are those of a model retrained without what was deleted, up to the distance that the bound states."
    ),
    Guarantee.GRAPH_ONLY: (
        "The deleted data has left the graph and every prediction. The weights were trained with it and stay as they "
        "are."
    ),
}
#: The same for whoever has never seen a model: on papers.
IN_PLAIN_WORDS = {
    Guarantee.SPAN: (
        "The model was not trained again. It is built from the remaining data, and may still carry some of what it had "
        "learned from this data."
    ),
    Guarantee.RETRAINED: (
        "The model was then corrected. It is now the one that training without this data would have given, up to a "
        "proven difference."
    ),
    Guarantee.GRAPH_ONLY: "The model itself was trained with this data, and stays as it was.",
}
#: The same of a request that found everything deleted already.
NOTHING_LEFT = "An earlier request had already deleted everything that this one names. Its receipt says what was done."
#: And where that is all that is known.
NOTHING_LEFT_UNKNOWN = (
    "Everything that this request names had already been deleted. Only a receipt of that time says what was done: the "
    "database was restored from an older backup."
)


def noise_in_words(epsilon: float, delta: float, planned: int, mu: float) -> str:
    """What noise in published weights hides and what it does not: the one paragraph on it, wherever it is shown.

    `mu` is that of one version. Of two equally likely cases an observer of all `planned` ones is right in at most a
    share Phi(sqrt(planned) mu / 2); see `projector.certified.gaussian.success`.
    """
    success = math.ceil(500 * (1 + math.erf(mu * math.sqrt(planned / 8)))) / 10
    return (
        "Everything published from this model is computed from weights with noise. Nobody who sees all of it, for "
        f"{planned:,} versions after a deletion, can tell whether the deleted data was unlearned or never was in the "
        f"training, except with a stated advantage: right in at most {success:g} % of cases, where guessing is right "
        f"in 50 % (epsilon {epsilon:g}, delta {delta:g}). This does not hide who was deleted, nor when, nor what "
        "retraining without them reveals by itself. It does not cover versions from before it was turned on, nor parts "
        "of the model that were fixed earlier and do not change. The audit describes the weights without noise: "
        "publishing it would undo this. A later setting can promise less, or nothing, for earlier deletions as well."
    )


def noise_in_a_sentence(figures: Mapping[str, Any]) -> str | None:
    """The same of a version by the figures of its audit; None where it is published as it is."""
    if figures.get("publication_mu") is None:
        return None
    names = ("publication_epsilon", "publication_delta", "publications_planned", "publication_mu")
    return noise_in_words(*(figures[name] for name in names))
