"""The figures of an audit: the records that hold them, with each figure's name, meaning and format.

Database columns, response fields, export columns, rows on pages and in the terminal, and the table in the documentation
derive from here. `python -m docs.figures_table` writes that table; a test reports when it is stale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from typing import Any

from service.domain.formats import number, percent

#: Larger residuals, relative to |W|, are not rounding: the weights left the span, or the coefficients are not theirs.
MOST_RESIDUAL = 1e-8
#: The same limit for the span residual between a batch and its repair: eps cond(X)^2 for a condition number of 1e5, the
#: largest possible for the directions that the pseudo-inverse keeps.
MOST_UNREPAIRED = 2.3e-6


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds on |W - W_u|_F, where W_u is the optimum on the remaining graph; None without a certificate.

    Given before and after the repair of the weights, and also relative to |W|_F where that is not 0.
    """

    distance_bound_before: float | None = None
    distance_bound_after: float | None = None
    distance_bound_before_relative: float | None = None
    distance_bound_after_relative: float | None = None


@dataclass(frozen=True, kw_only=True)
class PublicationFigures:
    """The noise with which a version is published; all None if it is published without noise."""

    publication_epsilon: float | None = None
    publication_delta: float | None = None
    #: K.
    publications_planned: int | None = None
    #: Of this version alone; squares of mu add up over versions.
    publication_mu: float | None = None
    #: Hex.
    commitment_salt: str | None = None


@dataclass(frozen=True, kw_only=True)
class VersionFigures(Bounds, PublicationFigures):
    """Measurements of every version, whatever its cause: columns of `versions`."""

    #: Directions of the weights supported only by data that was removed in this version.
    directions_removed: int = 0
    #: Recomputed from the rows on disk; None before that.
    span_residual: float | None = None


@dataclass(frozen=True, kw_only=True)
class RepairFigures:
    """Measurements of a repair: columns of `versions`, set for the version in which it ended, else None."""

    #: Newton steps.
    repair_iterations: int | None = None
    #: |W - W_projected|_F / |W_projected|_F.
    repair_weight_change: float | None = None
    #: Relative bound up to which the repair counts as converged.
    repair_tolerance: float | None = None


@dataclass(frozen=True, kw_only=True)
class BatchDetails:
    """Measurements only of versions that a batch caused: columns of `batches`."""

    rank_before: int
    #: |W_after - W_before|_F / |W_before|_F.
    weight_change: float
    #: |W - (B + M T)|_F / |W|_F, the arithmetic check of the coefficients.
    coefficient_residual: float
    lost_direction_norm_before: float | None
    lost_direction_norm_after: float | None
    #: Method for M+: `downdate`, `decompose` or `refactorise`; `none` when no feature was deleted.
    factor_method: str
    #: Relative bound on the distance from the weights at the start of the batch to the optimum of the graph before it.
    distance_bound_start_relative: float | None = None
    #: Seconds; None without repair.
    factor_age_s: float | None = None
    #: What joined the graph: nodes, edges, and nodes that got features or a label in place of what they had.
    nodes_joined: int = 0
    edges_joined: int = 0
    features_joined: int = 0
    labels_joined: int = 0
    #: Directions of the features' span that only what joined supports.
    directions_gained: int = 0


@dataclass(frozen=True)
class RequestNorms:
    """The targets that a batch deleted for one request, and their norms: columns of `request_audits`."""

    #: Number of the request's nodes or edges that this batch deleted for it; the others were already gone.
    deleted: int
    #: None where a norm is undefined.
    injected_norm_before: float | None
    injected_norm_after: float | None
    channel_norm_before: float | None
    channel_norm_after: float | None
    #: |sum h_i^T u_i|_F over the nodes whose labels were withdrawn; None for every other request.
    training_norm_before: float | None = None
    training_norm_after: float | None = None
    #: How many of the nodes and edges named joined, or were corrected; None for a deletion.
    joined: int | None = None
    #: How many of them an earlier request had deleted.
    rejoined: int | None = None


class Question(StrEnum):
    """Questions that an audit answers, in the order of the pages.

    The bound is proven; the weight on the deleted nodes is 0 by construction, and proves less.
    """

    DISTANCE = "How far are the weights from retraining?"
    LEFT = "Is anything of it left in the weights?"
    MODEL = "Which model was changed?"


class Form(StrEnum):
    """Format of a value."""

    NUMBER = "number"
    #: A share, written as per cent, ppm or ppb.
    PERCENT = "percent"
    DIGEST = "digest"
    TEXT = "text"
    #: Several named numbers; not a column of a file.
    BY_STEP = "by step"


@dataclass(frozen=True)
class Figure:
    """Name, meaning and format of one figure."""

    label: str
    #: One or two plain sentences.
    meaning: str
    #: Example value for the API documentation.
    example: object = None
    #: None if pages show it outside their tables of figures.
    question: Question | None = None
    form: Form = Form.NUMBER
    unit: str = ""
    #: Largest value that rounding explains; None without such a limit.
    limit: float | None = None
    #: Whether receipts and `audit show` list it among the figures; they show some in rows of their own.
    in_receipts: bool = True
    #: Whether API responses contain it; exports and events contain all figures.
    in_answers: bool = True
    #: Whether it is computed from the weights without noise. For versions published with noise, only the audit has it.
    is_exact: bool = False
    #: When it is null; empty if never.
    absent: str = ""

    @property
    def description(self) -> str:
        """The meaning, with the condition for null."""
        return f"{self.meaning} Null {self.absent}." if self.absent else self.meaning

    def written(self, value: Any) -> str:
        """Return `value` as pages, papers and the terminal show it; a dash for None."""
        if self.form is Form.PERCENT:
            return percent(value)
        text = number(value) if value is None or self.form is Form.NUMBER else str(value)
        return f"{text} {self.unit}" if self.unit and value is not None else text

    def exact(self, value: Any) -> str:
        """Return the power of ten for a share that `written` gives in ppm or ppb; empty otherwise."""
        is_small = self.form is Form.PERCENT and value and not percent(value).endswith("%")
        return number(value) if is_small and percent(value) != number(value) else ""


_UNENDED = "until a repair has ended"
_left = partial(Figure, question=Question.LEFT)
_distance = partial(Figure, question=Question.DISTANCE)
_share = partial(_distance, form=Form.PERCENT)
_norm = partial(_left, absent="for edges", is_exact=True)
_removed = partial(_left, absent="where no direction was removed", is_exact=True)
_marker = partial(
    _left, absent="unless the batch took the last nodes with the marker, some of them for this request", is_exact=True
)
_bound = partial(_distance, absent="for a loss without a certificate", is_exact=True)
_repair = partial(_distance, absent=_UNENDED)
_model = partial(Figure, question=Question.MODEL)
_pull = partial(_left, absent="unless labels are withdrawn", is_exact=True)
_joined = partial(_model, absent="for deletions")
_version = partial(_model, in_receipts=False)
_promise = partial(_distance, absent="for versions published as they are")
_digest = partial(_version, form=Form.DIGEST)

#: By name, in the order of responses and exports.
FIGURES: Mapping[str, Figure] = {
    "model_version_before": _version("Model version before", "Version before the batch.", 6),
    "model_version_after": _version(
        "Model version after", "Version that the batch made; predictions name their version.", 7
    ),
    "weights_sha256_before": _digest(
        "Weights before",
        "SHA-256 of the weights before the batch; salted where weights are published with noise.",
        "9f86" * 16,
    ),
    "weights_sha256_after": _digest("Weights after", "SHA-256 of the weights after the batch.", "6030" * 16),
    "rank_before": _model("Rank before", "Independent directions in the nodes' features.", 1431),
    "rank_after": _model("Rank after", "Independent directions in the remaining nodes' features.", 1431),
    "directions_removed": _left(
        "Directions removed",
        "Directions that only the deleted nodes supported. 0 is common; the bound then decides.",
        0,
    ),
    "live_nodes": Figure("Live nodes", "Nodes left in the graph.", in_answers=False),
    "deleted": _model(
        "Deleted for this request",
        "Nodes or edges deleted for this request. Any others that it names were already gone.",
        2,
    ),
    "joined": _joined("Joined for this request", "Nodes and edges added, or nodes corrected, for this request."),
    "rejoined": _joined("Deleted before", "Joined nodes and edges that an earlier request had deleted."),
    "directions_gained": Figure("Directions gained", "Directions that only rows added by the batch support.", 0),
    "nodes_joined": Figure("Nodes added", "Nodes that joined the graph with the batch.", 0),
    "edges_joined": Figure("Edges added", "Edges that joined the graph with the batch.", 0),
    "features_joined": Figure("Features corrected", "Nodes whose features the batch replaced.", 0),
    "labels_joined": Figure("Labels corrected", "Nodes whose labels the batch replaced.", 0),
    "injected_norm_before": _norm(
        "Weight on these nodes before",
        "What the model had learned from these nodes alone: weight, relative to its size, of an "
        "infinitesimal feature that only they carry.",
        0.23,
    ),
    "injected_norm_after": _norm(
        "Weight on these nodes after",
        "The same weight after they left the graph: 0 by construction. Span residual and bound are measured.",
        0.0,
    ),
    "lost_direction_norm_before": _removed(
        "Weight along removed directions before", "How much of the weights pointed along the removed directions."
    ),
    "lost_direction_norm_after": _removed(
        "Weight along removed directions after", "The same after the batch: rounding, about 10⁻¹⁵ of the weights."
    ),
    "channel_norm_before": _marker(
        "Weight on the test column before", "Weight of a marker that was put on these nodes before training."
    ),
    "channel_norm_after": _marker(
        "Weight on the test column after",
        "The same weight afterwards, read from the model. 0 up to rounding: the marker is forgotten.",
    ),
    "training_norm_before": _pull(
        "Weight of these labels in training before",
        "How strongly training pulled the weights towards these labels, in units of the weights.",
    ),
    "training_norm_after": _pull(
        "Weight of these labels in training after", "The same afterwards: 0, since they are not trained on."
    ),
    "span_residual": _left(
        "Span residual",
        "Share of the weights that the rows left on disk do not explain: about 10⁻¹⁵, at most 10⁻⁸ after a repair.",
        3e-15,
        limit=MOST_UNREPAIRED,
        absent="until the request is completed",
        is_exact=True,
    ),
    "weight_change": _share(
        "Moved by the batch",
        "How much the whole update changed the weights, relative to their size.",
        0.011,
        is_exact=True,
    ),
    "distance_bound_start_relative": _bound(
        "Bound when it began",
        "Proven maximum distance from the optimum before the batch: what training or an earlier repair left undone.",
        3e-12,
        form=Form.PERCENT,
    ),
    "distance_bound_before": _bound(
        "Bound before repair, absolute", "The bound before repair, in units of the weights.", 4.1, in_receipts=False
    ),
    "distance_bound_after": _bound(
        "Bound after repair, absolute", "The bound after repair, in units of the weights.", 2e-9, in_receipts=False
    ),
    "distance_bound_before_relative": _bound(
        "Bound before repair",
        "Proven maximum distance from the retrained weights before the repair, relative to the weights.",
        0.2,
        form=Form.PERCENT,
    ),
    "distance_bound_after_relative": _bound(
        "Bound after repair",
        "Proven maximum distance from the retrained weights, relative to the weights. Computed from the gradient.",
        1e-10,
        form=Form.PERCENT,
    ),
    "repair_iterations": _repair("Steps of repair", "Newton steps on the remaining graph.", 3, is_exact=True),
    "repair_weight_change": _repair(
        "Moved by the repair",
        "How much the repair alone changed the weights, relative to their size.",
        0.011,
        form=Form.PERCENT,
        is_exact=True,
    ),
    "repair_version": _version("Repaired in version", "Model version in which the repair ended.", 7, absent=_UNENDED),
    "repair_weights_sha256": _digest(
        "Weights of that version",
        "SHA-256 of the weights in which the repair ended.",
        "6030" * 16,
        absent=_UNENDED,
    ),
    "repair_tolerance": _repair(
        "Largest bound accepted",
        "Weights count as retrained up to this bound after repair.",
        1e-8,
        form=Form.PERCENT,
    ),
    "factor_age_s": _distance(
        "Factor kept in memory",
        "How long a factor of the loss's curvature made before the deletion may stay in memory, never on disk, "
        "to speed "
        "up repairs. It does not influence what the weights converge to.",
        60.0,
        unit="s",
        absent="where nothing is repaired, or no factor is made",
    ),
    "coefficient_residual": _model(
        "Bookkeeping error",
        "Rounding in Lethe's bookkeeping. It checks the arithmetic and proves nothing about forgetting.",
        2e-14,
        limit=MOST_RESIDUAL,
        is_exact=True,
    ),
    "factor_method": Figure(
        "Pseudo-inverse by",
        "How the pseudo-inverse was made: `downdate`, `decompose`, `refactorise`; `none` when no feature was deleted.",
        "downdate",
        form=Form.TEXT,
    ),
    "durations_ms": Figure(
        "Time by step",
        "How long each step of the batch took.",
        {"project": 1.9, "repair": 410.0},
        form=Form.BY_STEP,
        unit="ms",
        is_exact=True,
    ),
    "publication_epsilon": _promise(
        "Promised epsilon",
        "How much better than by guessing unlearned weights may be distinguished from retrained ones.",
    ),
    "publication_delta": _promise("Promised delta", "How far a probability may exceed what epsilon allows."),
    "publications_planned": _promise(
        "Publications planned", "Number of versions after a deletion for which the promise holds."
    ),
    "publication_mu": _promise(
        "Spent by this version", "What this version adds, as mu of Gaussian differential privacy; squares add up."
    ),
    "commitment_salt": _digest(
        "Salt of the commitments",
        "Opens the log's commitments to this version. Only for those who may read the audit.",
        absent="for versions published as they are",
        is_exact=True,
    ),
    "device": Figure("Device", "What the batch was computed on.", "cpu", form=Form.TEXT),
}
#: Labels of the steps of a batch, in order, by their name in `durations_ms`.
_STEPS = {
    "project": "Computing the new weights",
    "repair": "Repairing them",
    "write": "Writing the new version",
    "swap": "Taking it into service",
    "erase": "Erasing the disk",
    "verify": "Measuring what is on the disk",
}
#: Labels of the totals over all requests, by name; shared by the first screen, the terminal and reports.
TOTALS: Mapping[str, str] = {
    "requests": "Received",
    "completed": "Completed",
    "failed": "Failed",
    "cancelled": "Cancelled",
    "refused": "Refused",
    "open": "Open",
    "open_past_deadline": "Past the deadline",
    "open_near_deadline": "Due soon",
    "open_failed": "Failed, not handled",
    "open_held": "On hold",
    "on_time": "On time",
    "late": "Late",
    "seconds_to_applied": "Time to removal from predictions",
    "seconds_to_completed": "Time to completion",
    "unchanged_projection_share": "No direction removed",
    "model_version": "Model version",
    "rank": "Rank",
    "live_nodes": "Live nodes",
}
#: Figures listed on receipts and by `audit show`.
RECEIPT = {name: each for name, each in FIGURES.items() if each.question and each.in_receipts}
#: Figures that only the audit has for versions published with noise.
EXACT = frozenset(name for name, each in FIGURES.items() if each.is_exact)
#: Figures of the request itself; the others belong to its batch.
OF_REQUEST = frozenset(each.name for each in fields(RequestNorms))


def answers(known: Mapping[str, Any]) -> Mapping[Question, Sequence[tuple[Figure, Any]]]:
    """Return the known figures with their values, grouped by question; questions without figures are left out."""
    found: dict[Question, list[tuple[Figure, Any]]] = {question: [] for question in Question}
    for name, figure in FIGURES.items():
        if figure.question is not None and known.get(name) is not None:
            found[figure.question].append((figure, known[name]))
    return {question: figures for question, figures in found.items() if figures}


def timed_steps(durations_ms: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return milliseconds by step, labelled and in step order; unlabelled steps come last under their own names."""
    known = [(words, durations_ms[name]) for name, words in _STEPS.items() if name in durations_ms]
    return known + [(name, ms) for name, ms in durations_ms.items() if name not in _STEPS]


def values_of(record: object, *kinds: type[Any]) -> dict[str, Any]:
    """Return the fields of `kinds` in `record` by name; `record` inherits from `kinds`."""
    return {each.name: getattr(record, each.name) for kind in kinds for each in fields(kind)}
