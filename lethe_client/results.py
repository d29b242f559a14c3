"""Responses of Lethe's HTTP interface, with its field names. Unknown fields of newer servers are ignored."""

from datetime import date, datetime

import msgspec


class Salts(msgspec.Struct, frozen=True):
    """Secrets that hide ids and reference in the transparency log.

    They are returned once: store them with your records.
    """

    #: Hex salt by node id.
    nodes: dict[str, str] = {}
    reference: str | None = None


class Accepted(msgspec.Struct, frozen=True):
    """An accepted request (202)."""

    id: str
    status: str
    kind: str
    #: Number of nodes and edges that it names.
    count: int
    received_at: datetime
    #: Deadline.
    due_at: datetime | None = None
    #: Addresses; `self` is the request's.
    links: dict[str, str] = {}
    #: None once the request is completed, which erases them.
    salts: Salts | None = None
    #: Nodes, or `a|b` for edges, deleted by an earlier request, with that request's id.
    already_deleted: dict[str, str | None] = {}


class BatchSummary(msgspec.Struct, frozen=True):
    """The batch in which a request was applied."""

    id: str
    requests: int
    #: Nodes deleted entirely.
    nodes: int
    #: Nodes whose features were deleted.
    features: int = 0
    #: Edges deleted individually.
    edges: int = 0
    #: Nodes whose labels were withdrawn.
    labels: int = 0


class Audit(msgspec.Struct, frozen=True):
    """Measurements at the time the request was applied; None for quantities that do not apply."""

    batch: BatchSummary
    model_version_before: int
    model_version_after: int
    weights_sha256_before: str
    weights_sha256_after: str
    rank_before: int
    rank_after: int
    directions_removed: int
    #: Number of named nodes or edges that the batch deleted for this request; the others were already gone.
    deleted: int | None = None
    #: How many of the nodes and edges named joined, or nodes were corrected; None for a deletion.
    joined: int | None = None
    #: How many of them an earlier request had deleted.
    rejoined: int | None = None
    #: Directions that only what joined in the batch supports, and what joined in it.
    directions_gained: int | None = None
    nodes_joined: int | None = None
    edges_joined: int | None = None
    features_joined: int | None = None
    labels_joined: int | None = None
    injected_norm_before: float | None = None
    injected_norm_after: float | None = None
    lost_direction_norm_before: float | None = None
    lost_direction_norm_after: float | None = None
    channel_norm_before: float | None = None
    channel_norm_after: float | None = None
    #: How strongly training pulled the weights towards labels that were withdrawn; None for other requests.
    training_norm_before: float | None = None
    training_norm_after: float | None = None
    span_residual: float | None = None
    weight_change: float | None = None
    #: Bound on the distance to the optimum of the graph when the batch began: what training or a repair left undone.
    distance_bound_start_relative: float | None = None
    distance_bound_before: float | None = None
    distance_bound_after: float | None = None
    distance_bound_before_relative: float | None = None
    distance_bound_after_relative: float | None = None
    repair_iterations: int | None = None
    #: Weight change by the repair alone, as a share of the weights.
    repair_weight_change: float | None = None
    #: The model version in which the repair ended, the batch's own or a later one, and the digest of its weights.
    repair_version: int | None = None
    repair_weights_sha256: str | None = None
    #: The relative bound at which the repair counted as converged; None until one has ended.
    repair_tolerance: float | None = None
    #: How long (seconds) a factor of the loss's curvature from before the deletion may stay in memory after it, never
    #: on disk; None without repair.
    factor_age_s: float | None = None
    #: |W - (B + M T)|_F / |W|_F, which checks the coefficients' arithmetic.
    coefficient_residual: float | None = None
    #: How M+ was obtained: `downdate`, `decompose` or `refactorise`; `none` if no feature was deleted.
    factor_method: str | None = None
    #: Milliseconds by step of the batch; empty for keys without audit:read if weights are published with noise.
    durations_ms: dict[str, float] = {}
    #: The promise for weights published with noise, and the salt that opens commitments to them; None without noise.
    publication_epsilon: float | None = None
    publication_delta: float | None = None
    publications_planned: int | None = None
    publication_mu: float | None = None
    commitment_salt: str | None = None
    device: str | None = None


class Deletion(msgspec.Struct, frozen=True):
    """The current state of a deletion request."""

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
    #: Deadline.
    due_at: datetime | None = None
    #: Whether it ended after the deadline or is open past it; None before the deadline, and if held or cancelled.
    late: bool | None = None
    #: Since when it is on hold; None if it is not.
    held_at: datetime | None = None
    #: The held request that it waits for, because both name the same; only with audit:read.
    waits_for: str | None = None
    #: When a failed request was handled, and by which later request, if that deleted the same.
    handled_at: datetime | None = None
    handled_by: str | None = None
    #: Failed requests that this one handled that way.
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

    #: Id of its deletion request.
    request_id: str
    cohort: int
    requested_at: datetime
    #: Status of the request.
    status: str
    #: The result in one sentence.
    finding: str
    applied_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    #: Norm of the cohort's rows of the weights, read from the weights.
    channel_norm_before: float | None = None
    channel_norm_after: float | None = None
    #: None while in progress, and if cancelled.
    passed: bool | None = None
    #: When an import replaced the drill's model; None while that model is served.
    model_replaced_at: datetime | None = None


class Cohorts(msgspec.Struct, frozen=True):
    """The canaries of the served model."""

    #: Cohorts at training, and nodes in each; 0 for a model without canaries.
    total: int
    nodes: int
    #: Number left for drills.
    remaining: int
    #: Cohorts that drills skip because other requests deleted a part of them.
    partly_deleted: list[int] = []


class AcceptedDrill(Drill, frozen=True, kw_only=True):
    """An accepted drill (202)."""

    cohorts: Cohorts
    #: None once they are erased.
    salts: Salts | None = None


class Drills(msgspec.Struct, frozen=True):
    """The served model's drills, newest first, and the cohorts that are left."""

    model: str
    cohorts: Cohorts
    drills: list[Drill]


class Percentiles(msgspec.Struct, frozen=True):
    """Seconds, each accurate to one per cent; None if there was nothing to measure."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class OpenRequest(msgspec.Struct, frozen=True):
    """A request that has not ended: queued, applied, or failed without being handled."""

    id: str
    received_at: datetime


class Month(msgspec.Struct, frozen=True):
    """On-time figures for the requests received in one month (UTC), without drills."""

    #: First day of the month.
    month: date
    on_time: int
    #: Including those open past their deadline.
    late: int
    on_time_share: float


class AuditSummary(msgspec.Struct, frozen=True):
    """Audit figures of the served model.

    They exclude drills. Counts cover requests received in the window, percentiles those applied and completed in it.
    Open requests and model figures are current.
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
    #: Completed requests that deleted something, and those whose weights equal retraining within a proven bound.
    completed_deletions: int = 0
    completed_retrained: int = 0
    #: Completed deletions with nothing left to delete.
    completed_without_work: int = 0
    #: Requests refused for what they name; not included in the other figures.
    refused: int = 0
    #: Failed requests that are not handled; they are open.
    open_failed: int = 0
    #: Requests on hold; they are open, and neither late nor due soon.
    open_held: int = 0
    #: Days until the deadline of a request received now.
    deadline_days: float | None = None
    months: list[Month] = []
    since: date | None = None
    until: date | None = None
    oldest_open: OpenRequest | None = None
    #: Share of applied requests whose projection removed no direction, and so changed nothing.
    unchanged_projection_share: float | None = None
    model_version: int | None = None
    rank: int | None = None
    live_nodes: int | None = None
    #: What the noise in published data of the model hides and what it does not; None without noise.
    noise: str | None = None


class SeriesPoint(msgspec.Struct, frozen=True):
    """Events within one hour or day (UTC)."""

    start: datetime
    received: int
    applied: int
    completed: int
    failed: int
    median_seconds_to_completed: float | None = None
    p95_seconds_to_completed: float | None = None
    #: Values after the newest batch or import before its end.
    rank_after: int | None = None
    live_nodes: int | None = None
    max_distance_bound_after_relative: float | None = None


class Series(msgspec.Struct, frozen=True):
    """The audit over time, oldest first."""

    step: str
    points: list[SeriesPoint]


class FoundDeletion(msgspec.Struct, frozen=True):
    """A node that was deleted, or whose features were, and the request that did it."""

    node: str
    #: None if the server's database, restored from an older backup, lacks the request.
    deletion: Deletion | None


class SearchResult(msgspec.Struct, frozen=True):
    """The requests that deleted the given nodes; or, without nodes, a page of requests."""

    found: list[FoundDeletion] = []
    not_found: list[str] = []
    deletions: list[Deletion] | None = None
    next_cursor: str | None = None


class NodePrediction(msgspec.Struct, frozen=True, omit_defaults=True):
    """Class probabilities for one of several nodes; scores instead for a regression."""

    node: str
    label: str = ""
    probabilities: dict[str, float] = {}
    scores: dict[str, float] = {}


class Prediction(msgspec.Struct, frozen=True, omit_defaults=True):
    """Class probabilities for one node by one model version; scores instead for a regression."""

    node: str
    model_version: int
    label: str = ""
    probabilities: dict[str, float] = {}
    scores: dict[str, float] = {}


class Predictions(msgspec.Struct, frozen=True):
    """Predictions for several nodes, all by one model version."""

    model_version: int
    predictions: list[NodePrediction]
    unknown: list[str] = []
    #: Nodes deleted on request; listed only for keys with deletions:read.
    deleted: list[str] = []


class OutsidePrediction(msgspec.Struct, frozen=True, omit_defaults=True):
    """Class probabilities for one node outside the graph; scores instead for a regression."""

    label: str = ""
    probabilities: dict[str, float] = {}
    scores: dict[str, float] = {}


class OutsidePredictions(msgspec.Struct, frozen=True):
    """Predictions for nodes outside the graph, in the order asked, all by one model version."""

    model_version: int
    predictions: list[OutsidePrediction]


class RepairProgress(msgspec.Struct, frozen=True):
    """Progress of a running repair."""

    iterations: int
    #: Number of products with the Hessian.
    products: int
    #: Relative bound on the distance of the best weights so far to retraining.
    distance_bound_relative: float | None = None


class Noise(msgspec.Struct, frozen=True):
    """How a version is published with noise."""

    epsilon: float
    delta: float
    #: Number of versions after a deletion that the promise covers together, and how many of them are used up.
    planned: int
    used: float
    #: Standard deviation of the noise in each weight.
    sigma: float
    #: What the noise hides and what it does not.
    meaning: str


class ModelInfo(msgspec.Struct, frozen=True):
    """The served model. Figures of the weights and the graph are None without audit:read."""

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
    #: Regularisation; `lambda` in the interface.
    lambda_: float = msgspec.field(name="lambda")
    propagation: str | None = None
    condition_number: float | None = None
    #: At import: shares predicted correctly by `train`, `val` and `test`; for a regression, R^2 and mean squared error.
    accuracy: dict[str, float | None] | None = None
    regression: dict[str, float | None] | None = None
    #: What deletions do not change, and `retrained` depends on.
    frozen_parts: list[str] = msgspec.field(default_factory=list)
    #: Whether edges have weights.
    weighted: bool = False
    training_nodes: int | None = None
    #: Of this version, on the validation and the test nodes that are left: accuracy, or R^2 of a regression.
    score_validation: float | None = None
    score_test: float | None = None
    span_residual: float | None = None
    #: Upper bound on the distance to the weights of retraining on the remaining graph; also as a share of them.
    distance_bound: float | None = None
    distance_bound_relative: float | None = None
    repair: str | None = None
    #: Only while `repair` is `pending`.
    repair_progress: RepairProgress | None = None
    guarantee: str | None = None
    #: None if the weights are published unchanged.
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
