"""Prometheus metrics of the service. No label ever carries an id."""

import math
from collections.abc import Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from projector.forgetting.status import RepairStatus
from service.domain.drills import Drill
from service.domain.figures import MOST_RESIDUAL, MOST_UNREPAIRED
from service.domain.kinds import RequestKind
from service.domain.records import BatchRecord
from service.domain.states import RequestStatus
from service.domain.versions import Drift

_NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16_384)
_STEP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)
_REPAIR_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
_AGE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0, 3600.0, 86_400.0)


def new_registry(restarts: int = 0) -> CollectorRegistry:
    """Return a new registry with the metrics of the process; `/metrics` exposes it.

    `restarts` is the number of times that the supervisor restarted the process.
    """
    registry = CollectorRegistry(auto_describe=True)
    Counter(
        "lethe_restarts_total", "Times the supervisor restarted this process after it ended.", registry=registry
    ).inc(restarts)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def most_span_residual(repair: RepairStatus) -> float:
    """Return the largest span residual that rounding explains, for weights with this repair status."""
    return MOST_RESIDUAL if repair is RepairStatus.CONVERGED else MOST_UNREPAIRED


def _known(value: float | None) -> float:
    return math.nan if value is None else value


class IntakeMetrics:
    """Metrics of incoming requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._received = Counter(
            "lethe_deletions_received_total", "Deletion requests accepted.", ("kind",), registry=registry
        )
        self._refused = Counter(
            "lethe_deletions_refused_total",
            "Deletion requests refused for what they name: unknown, or never deleted.",
            ("kind",),
            registry=registry,
        )

    def received(self, kind: RequestKind) -> None:
        """Count an accepted request."""
        self._received.labels(kind.value).inc()

    def refused(self, kind: RequestKind) -> None:
        """Count a request refused for the targets that it names."""
        self._refused.labels(kind.value).inc()


#: Figures of weights and graph, shown only to keys with audit:read: a reader with the data could use them to test what
#: was deleted.
AUDIT_ONLY = frozenset({"lethe_model_edges", "lethe_model_training_nodes", "lethe_model_score"})


class UnlearningMetrics:
    """Metrics of deletion requests and the model.

    Anybody on this machine can read them, and every key that may predict, except for those in `AUDIT_ONLY`. The others
    contain no figure of weights or graph, so they report only whether a residual is too large. If the weights are
    published with noise, they omit step durations too.

    Public gauges are set by `keep_gauges` and the process; until then they are NaN.
    """

    def __init__(self, registry: CollectorRegistry, *, with_noise: bool = False) -> None:
        def counter(name: str, said: str, *labels: str) -> Counter:
            return Counter(name, said, labels, registry=registry)

        def histogram(name: str, said: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(name, said, labels, buckets=buckets, registry=registry)

        def gauge(name: str, said: str) -> Gauge:
            made = Gauge(name, said, registry=registry)
            # Not 0, which would be a value.
            made.set(math.nan)
            return made

        self._with_noise = with_noise
        self._ended = counter("lethe_deletions_ended_total", "Deletion requests that reached a final state.", "status")
        self._age = histogram(
            "lethe_deletion_age_seconds",
            "Time from the receipt of a deletion request to its state.",
            _AGE_SECONDS,
            "status",
        )
        self.queued_nodes = gauge("lethe_queued_nodes", "Nodes queued for deletion.")
        self.open = gauge(
            "lethe_open_deletions",
            "Deletion requests that have not ended: queued, applied, or failed and unhandled.",
        )
        self.past_deadline = gauge("lethe_open_deletions_past_deadline", "Open requests past their deadline.")
        self.near_deadline = gauge(
            "lethe_open_deletions_near_deadline", "Open requests in the last fifth of their time."
        )
        self.open_failed = gauge("lethe_open_deletions_failed", "Failed, unhandled requests.")
        self.open_held = gauge("lethe_open_deletions_held", "Requests on hold.")
        self.oldest_open = gauge("lethe_oldest_open_deletion_seconds", "Age of the oldest open request; 0 without one.")
        self.disk_free = gauge("lethe_disk_free_bytes", "Free space on the disk of LETHE_HOME.")
        self.memory_free = gauge(
            "lethe_memory_available_bytes",
            "Memory available to the unlearner within machine, container and limits; NaN if unknown.",
        )
        self.unclaimed = gauge(
            "lethe_oldest_unclaimed_seconds",
            "Time that the oldest request has waited although it could be processed; 0 while the queue moves.",
        )
        self._batches = counter("lethe_batches_total", "Updates of the model, by how M+ was obtained.", "method")
        self._batch_nodes = histogram("lethe_batch_nodes", "Nodes in one update of the model.", _NODES)
        self._steps = histogram("lethe_batch_step_seconds", "Duration of one step of a batch.", _STEP_SECONDS, "step")
        self._version = gauge("lethe_model_version", "Version of the served model.")
        self._live_nodes = gauge("lethe_model_live_nodes", "Live nodes.")
        self._edges = gauge("lethe_model_edges", "Edges between live nodes. Shown only to keys with audit:read.")
        self._training_nodes = gauge(
            "lethe_model_training_nodes", "Nodes that are trained on. Shown only to keys with audit:read."
        )
        self._score = Gauge(
            "lethe_model_score",
            "Accuracy on the validation and the test nodes that are left, or R^2 of a regression; NaN without such "
            "nodes. Shown only to keys with audit:read.",
            ("nodes",),
            registry=registry,
        )
        self._residuals_too_large = gauge(
            "lethe_residuals_too_large",
            "1 if a residual of the served model is larger than rounding explains, else 0; NaN without a model.",
        )
        self._exceeded = counter(
            "lethe_residual_exceeded_total",
            f"Measurements larger than rounding explains: {MOST_RESIDUAL:g}, or {MOST_UNREPAIRED:g} before a repair.",
            "residual",
        )
        for residual in ("span", "coefficient"):
            self._exceeded.labels(residual)
        self._repairs = counter("lethe_repairs_total", "Repairs by result.", "status")
        self._not_converged = counter(
            "lethe_repairs_not_converged_total", "Repairs that did not reach the weights of retraining."
        )
        self._repair_seconds = histogram("lethe_repair_seconds", "Working time of a repair.", _REPAIR_SECONDS)
        self._promise_used = gauge(
            "lethe_promise_used_share",
            "Used share of the privacy promise for published weights; NaN without noise.",
        )
        self.pending_repairs = gauge("lethe_repair_pending", "Requests that wait for a repair.")
        self.webhooks_waiting = gauge("lethe_webhook_deliveries_waiting", "Webhook events not delivered yet.")
        self.webhooks_oldest = gauge(
            "lethe_webhook_oldest_waiting_seconds",
            "Age of the oldest undelivered webhook event; 0 without one.",
        )
        self.webhooks_given_up = gauge(
            "lethe_webhook_deliveries_given_up",
            "Webhook events of the last 30 days that were given up.",
        )
        self._drill_completed = gauge(
            "lethe_drill_last_completed_timestamp_seconds",
            "Completion time of the last drill of the served model (seconds since 1970); 0 before the first.",
        )
        self._drill_passed = gauge(
            "lethe_drill_last_passed",
            "1 if the last drill of the served model left nothing in its column of the weights, else 0; NaN "
            "before the first.",
        )
        self.drill_cohorts = gauge("lethe_drill_cohorts_remaining", "Cohorts of canaries left for drills.")
        # These begin at 0, so that a log that is never signed raises the alert.
        self.log_size = Gauge("lethe_log_size", "Leaves of the transparency log.", registry=registry)
        self.log_signed = Gauge(
            "lethe_log_signed_size",
            "Leaves of the transparency log covered by the newest checkpoint.",
            registry=registry,
        )
        self.ledger_failing = gauge(
            "lethe_ledger_failing_seconds", "Time that the erasure ledger has been unavailable; 0 if it works."
        )
        self.workers = gauge("lethe_workers", "Processes that compute together.")
        self.workers_wanted = gauge("lethe_workers_wanted", "Processes configured to compute together.")

    def reached(self, status: RequestStatus, age_seconds: float) -> None:
        """Record the time from receipt to `status` (seconds, by Postgres' clock)."""
        self._age.labels(status.value).observe(age_seconds)
        if status not in (RequestStatus.QUEUED, RequestStatus.APPLIED):
            self._ended.labels(status.value).inc()

    def drilled(self, completed: Drill | None, ended: Drill | None) -> None:
        """Report the served model's last completed drill, and its last drill with a result, passed or failed."""
        at = None if completed is None else completed.completed_at
        self._drill_completed.set(0.0 if at is None else at.timestamp())
        self._drill_passed.set(math.nan if ended is None else float(bool(ended.passed)))

    def measured(self, span_residual: float, repair: RepairStatus) -> None:
        """Count a newly measured span residual if it is too large for weights with this repair status."""
        if span_residual > most_span_residual(repair):
            self._exceeded.labels("span").inc()

    def repaired(self, status: RepairStatus, seconds: float | None) -> None:
        """Count an ended repair by its status, CONVERGED or NOT_CONVERGED, and add its working time if known."""
        self._repairs.labels(status.value).inc()
        if status is RepairStatus.NOT_CONVERGED:
            self._not_converged.inc()
        if seconds is not None and not self._with_noise:
            self._repair_seconds.observe(seconds)

    def model(
        self,
        *,
        version: int,
        live_nodes: int,
        edges: int,
        drift: Drift,
        residuals_too_large: bool,
        promise_used: float | None = None,
    ) -> None:
        """Report the served model."""
        self._promise_used.set(_known(promise_used))
        self._version.set(version)
        self._live_nodes.set(live_nodes)
        self._edges.set(edges)
        self._training_nodes.set(_known(drift.training_nodes))
        self._score.labels("validation").set(_known(drift.score_validation))
        self._score.labels("test").set(_known(drift.score_test))
        self._residuals_too_large.set(residuals_too_large)

    def no_model(self) -> None:
        """Report no model: none is loaded, or another process serves it. NaN, because 0 would be a value."""
        of_graph = (self._live_nodes, self._edges, self._training_nodes)
        for gauge in (self._version, *of_graph, self._residuals_too_large, self.drill_cohorts):
            gauge.set(math.nan)
        self._score.clear()

    def completed(self, batch: BatchRecord) -> None:
        """Count a batch, once, on completion."""
        self._batches.labels(batch.factor_method).inc()
        self._batch_nodes.observe(batch.nodes)
        if batch.coefficient_residual > MOST_RESIDUAL:
            self._exceeded.labels("coefficient").inc()
        if batch.span_residual is not None:
            self.measured(batch.span_residual, batch.repair)
        if batch.repair in (RepairStatus.CONVERGED, RepairStatus.NOT_CONVERGED):
            milliseconds = batch.durations_ms.get("repair")
            self.repaired(batch.repair, None if milliseconds is None else milliseconds / 1000)
        for step, milliseconds in () if self._with_noise else batch.durations_ms.items():
            self._steps.labels(step).observe(milliseconds / 1000)
