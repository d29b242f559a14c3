"""The answers of Lethe's HTTP interface, by the names it uses. Unknown fields of newer servers are ignored."""

from datetime import date, datetime

import msgspec


class Salts(msgspec.Struct, frozen=True):
    """Secrets under which the transparency log names ids and reference; given once, keep them with your records."""

    #: Hex salt by node id.
    nodes: dict[str, str] = {}
    reference: str | None = None


class Accepted(msgspec.Struct, frozen=True):
    """A deletion request that was accepted (202)."""

    id: str
    status: str
    kind: str
    #: How many nodes or edges it names.
    count: int
    received_at: datetime
    #: Deadline.
    due_at: datetime | None = None
    #: Addresses; `self` is that of the request.
    links: dict[str, str] = {}
    #: None once the request is completed, when they are erased.
    salts: Salts | None = None
    #: Nodes, or `a|b` for edges, that an earlier request deleted, with that request's id.
    already_deleted: dict[str, str | None] = {}


class BatchSummary(msgspec.Struct, frozen=True):
    """The batch that a request was applied in."""

    id: str
    requests: int
    #: Nodes deleted entirely.
    nodes: int
    #: Nodes whose features were deleted.
    features: int = 0
    #: Edges deleted by themselves.
    edges: int = 0


class Audit(msgspec.Struct, frozen=True):
    """Measurements when the request was applied; None where a quantity does not exist."""

    batch: BatchSummary
    model_version_before: int
    model_version_after: int
    weights_sha256_before: str
    weights_sha256_after: str
    rank_before: int
    rank_after: int
    directions_removed: int
    #: How many of the nodes or edges named the batch deleted for this request; the others were gone already.
    deleted: int | None = None
    injected_norm_before: float | None = None
    injected_norm_after: float | None = None
    lost_direction_norm_before: float | None = None
    lost_direction_norm_after: float | None = None
    channel_norm_before: float | None = None
    channel_norm_after: float | None = None
    span_residual: float | None = None
    weight_change: float | None = None
    #: To the optimum of the graph as it was when the batch began: what training, or a repair, had left undone.
    distance_bound_start_relative: float | None = None
    distance_bound_before: float | None = None
    distance_bound_after: float | None = None
    distance_bound_before_relative: float | None = None
    distance_bound_after_relative: float | None = None
    repair_iterations: int | None = None
    #: How much the repair alone changed the weights, as a share of them.
    repair_weight_change: float | None = None
    #: The model version in which the repair ended, the batch's own or a later one, and the digest of its weights.
    repair_version: int | None = None
    repair_weights_sha256: str | None = None
    #: The relative bound up to which the repair counted as converged; None while none has ended.
    repair_tolerance: float | None = None
    #: How long a factor of the loss' curvature made before the deletion may stay in memory after it, never on disk
    #: (seconds); None where nothing is repaired.
    factor_age_s: float | None = None
    #: |W - (B + M T)|_F / |W|_F, the arithmetic check of the coefficients.
    coefficient_residual: float | None = None
    #: How M+ was obtained: `downdate`, `decompose` or `refactorise`; `none` when no feature was deleted.
    factor_method: str | None = None
    #: Milliseconds by step of the batch; empty to keys without audit:read where weights are published with noise.
    durations_ms: dict[str, float] = {}
    #: What is promised of weights that are published with noise, and what opens commitments to them; None without.
    publication_epsilon: float | None = None
    publication_delta: float | None = None
    publications_planned: int | None = None
    publication_mu: float | None = None
    commitment_salt: str | None = None
    device: str | None = None


class Deletion(msgspec.Struct, frozen=True):
    """A deletion request as it stands."""

    id: str
    status: str
    kind: str
    count: int
    received_at: datetime
    reference: str | None = None
    applied_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    cancelled_at: datetime | None = None
    #: By when it is to end.
    due_at: datetime | None = None
    #: Whether it ended after that, or is open past it; None while there is time, and when it was cancelled.
    late: bool | None = None
    #: When a request that failed was handled, and by which later one, if that deleted the same.
    handled_at: datetime | None = None
    handled_by: str | None = None
    #: Failed requests that this one has handled so.
    handles: list[str] = []
    guarantee: str | None = None
    repair: str | None = None
    explanation: str | None = None
    failure: str | None = None
    #: The earlier request that had already deleted everything named.
    already_deleted_by: str | None = None
    audit: Audit | None = None


class DeletionPage(msgspec.Struct, frozen=True):
    """One page of a listing, newest first; `next_cursor` is None on the last."""

    deletions: list[Deletion]
    next_cursor: str | None = None


class Drill(msgspec.Struct, frozen=True):
    """The deletion of one cohort of canaries."""

    #: The deletion request that it is.
    request_id: str
    cohort: int
    requested_at: datetime
    #: That of the request.
    status: str
    #: The result in one sentence.
    finding: str
    applied_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    #: Norm of the cohort's rows of the weights, read from them.
    channel_norm_before: float | None = None
    channel_norm_after: float | None = None
    #: None while it is under way, and when it was cancelled.
    passed: bool | None = None
    #: When an import put another model in the place of the one it was a drill of; None while that one is served.
    model_replaced_at: datetime | None = None


class Cohorts(msgspec.Struct, frozen=True):
    """The canaries of the served model."""

    #: Cohorts at training, and nodes of each; 0 for a model without canaries.
    total: int
    nodes: int
    #: How many are left for drills.
    remaining: int
    #: Those that drills skip, as other requests deleted a part of them.
    partly_deleted: list[int] = []


class AcceptedDrill(Drill, frozen=True, kw_only=True):
    """A drill that was accepted (202)."""

    cohorts: Cohorts
    #: None once they are erased.
    salts: Salts | None = None


class Drills(msgspec.Struct, frozen=True):
    """The drills of the served model, newest first, and what is left for more."""

    model: str
    cohorts: Cohorts
    drills: list[Drill]


class Percentiles(msgspec.Struct, frozen=True):
    """Seconds, each within one per cent; None when there was nothing to measure."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class OpenRequest(msgspec.Struct, frozen=True):
    """A request that has not ended: it is queued or applied, or failed and is not handled."""

    id: str
    received_at: datetime


class Month(msgspec.Struct, frozen=True):
    """How many requests received in one month (UTC) ended in time; drills are not among them."""

    #: Its first day.
    month: date
    on_time: int
    #: Those too that are open past their deadline.
    late: int
    on_time_share: float


class AuditSummary(msgspec.Struct, frozen=True):
    """The audit of the served model in figures.

    Drills are in none of them. Counts are of requests received in the window, percentiles of those applied and
    completed in it; what is open and what is served is so now.
    """

    model: str
    requests: int
    by_status: dict[str, int]
    by_kind: dict[str, int]
    by_guarantee: dict[str, int]
    by_repair: dict[str, int]
    open: int
    open_past_deadline: int
    open_near_deadline: int
    seconds_to_applied: Percentiles
    seconds_to_completed: Percentiles
    #: Completed requests with a proven bound within which the weights are those of retraining.
    completed_retrained: int = 0
    #: Completed requests for which nothing was left to delete.
    completed_without_work: int = 0
    #: Requests that were refused for what they name, which are none of the others.
    refused: int = 0
    #: Requests that failed and are not handled; they are open.
    open_failed: int = 0
    #: Days within which a request that is received now is due.
    deadline_days: float | None = None
    months: list[Month] = []
    since: date | None = None
    until: date | None = None
    oldest_open: OpenRequest | None = None
    #: Share of the applied requests whose projection removed no direction, and so changed nothing.
    unchanged_projection_share: float | None = None
    model_version: int | None = None
    rank: int | None = None
    live_nodes: int | None = None
    #: What noise in what is published of the model hides and what not; None where there is none.
    noise: str | None = None


class SeriesPoint(msgspec.Struct, frozen=True):
    """What happened within one hour or day (UTC)."""

    start: datetime
    received: int
    applied: int
    completed: int
    failed: int
    median_seconds_to_completed: float | None = None
    p95_seconds_to_completed: float | None = None
    #: As the newest batch or import before its end left them.
    rank_after: int | None = None
    live_nodes: int | None = None
    max_distance_bound_after_relative: float | None = None


class Series(msgspec.Struct, frozen=True):
    """The audit over time, oldest first."""

    step: str
    points: list[SeriesPoint]


class FoundDeletion(msgspec.Struct, frozen=True):
    """A node that was deleted, or its features, and by which request."""

    node: str
    #: None where the server's database, restored from an older backup, does not have the request.
    deletion: Deletion | None


class SearchResult(msgspec.Struct, frozen=True):
    """Which requests deleted the nodes asked for; or, without nodes, a page of requests."""

    found: list[FoundDeletion] = []
    not_found: list[str] = []
    deletions: list[Deletion] | None = None
    next_cursor: str | None = None


class NodePrediction(msgspec.Struct, frozen=True):
    """The class probabilities of one of several nodes."""

    node: str
    label: str
    probabilities: dict[str, float]


class Prediction(msgspec.Struct, frozen=True):
    """The class probabilities of one node, by one model version."""

    node: str
    label: str
    probabilities: dict[str, float]
    model_version: int


class Predictions(msgspec.Struct, frozen=True):
    """Predictions of several nodes, all by one model version."""

    model_version: int
    predictions: list[NodePrediction]
    unknown: list[str] = []
    #: Nodes deleted on request; named to keys with deletions:read only.
    deleted: list[str] = []


class RepairProgress(msgspec.Struct, frozen=True):
    """How far a repair that goes on has come."""

    iterations: int
    #: Products with the Hessian.
    products: int
    #: Bound of the best weights so far on their distance to retraining, as a share of them.
    distance_bound_relative: float | None = None


class Noise(msgspec.Struct, frozen=True):
    """How a version is published with noise."""

    epsilon: float
    delta: float
    #: For how many versions after a deletion the promise holds together, and how many of them are used up.
    planned: int
    used: float
    #: Standard deviation in each weight.
    sigma: float
    #: What the noise hides and what it does not.
    meaning: str


class ModelInfo(msgspec.Struct, frozen=True):
    """The model that serves predictions; figures of the weights and the graph are None without audit:read."""

    name: str
    version: int
    nodes: int
    live_nodes: int
    edges: int | None
    features: int
    classes: list[str]
    hops: int
    combine: str
    loss: str
    rank: int | None
    device: str
    weights_sha256: str | None
    #: The regularisation; `lambda` in the interface.
    lambda_: float = msgspec.field(name="lambda")
    propagation: str | None = None
    condition_number: float | None = None
    span_residual: float | None = None
    #: The weights are at most this far from those of retraining on what remains; also as a share of them.
    distance_bound: float | None = None
    distance_bound_relative: float | None = None
    repair: str | None = None
    #: While `repair` is `pending`.
    repair_progress: RepairProgress | None = None
    guarantee: str | None = None
    #: None where the weights are published as they are.
    noise: Noise | None = None


class ConsistencyProof(msgspec.Struct, frozen=True):
    """The proof that a log only grew (RFC 6962, 2.1.2); hashes in hex."""

    from_: int = msgspec.field(name="from")
    to: int
    proof: list[str]


class InclusionProof(msgspec.Struct, frozen=True):
    """The proof that a leaf is in the log (RFC 6962, 2.1.1); hashes in hex."""

    index: int
    size: int
    leaf_hash: str
    proof: list[str]
