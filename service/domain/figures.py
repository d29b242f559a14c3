"""The figures of an audit: the records that hold them, and what each is called, means and is shown as.

Columns of the database, fields of answers, columns of exports, rows of pages and of commands, and the table in the
documents derive from here: `python -m docs.figures_table` writes the last; a test says when it is due.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from typing import Any

from service.domain.formats import number, percent

#: Residuals, relative to |W|, above this are no rounding: the weights have left the span of the remaining nodes, or
#: the coefficients no longer belong to the weights.
MOST_RESIDUAL = 1e-8
#: The same of the span residual between a batch and its repair: eps cond(X)^2 for a condition number of 1e5, the
#: largest that the directions carried by the pseudo-inverse can have.
MOST_UNREPAIRED = 2.3e-6


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds on |W - W_u|_F, W_u the optimum on the remaining graph; None without a certificate.

    Before the repair of the weights and after it, and relative to |W|_F, where it is not 0.
    """

    distance_bound_before: float | None = None
    distance_bound_after: float | None = None
    distance_bound_before_relative: float | None = None
    distance_bound_after_relative: float | None = None


@dataclass(frozen=True, kw_only=True)
class PublicationFigures:
    """How a version is published, where it is with noise; all None where it is as it is."""

    publication_epsilon: float | None = None
    publication_delta: float | None = None
    #: K.
    publications_planned: int | None = None
    #: Of this version alone, for the sum over all.
    publication_mu: float | None = None
    #: Hex.
    commitment_salt: str | None = None


@dataclass(frozen=True, kw_only=True)
class VersionFigures(Bounds, PublicationFigures):
    """What is measured of every version, whatever made it: columns of `versions`."""

    #: Directions of the weights that only what it lacks of what it was made from had supported.
    directions_removed: int = 0
    #: Recomputed from the rows on disk; None until then.
    span_residual: float | None = None


@dataclass(frozen=True, kw_only=True)
class RepairFigures:
    """What is measured of a repair: columns of `versions`, of the one in which it ended; None in all others."""

    #: Newton steps.
    repair_iterations: int | None = None
    #: |W - W_projected|_F / |W_projected|_F.
    repair_weight_change: float | None = None
    #: The relative bound up to which it counted as converged.
    repair_tolerance: float | None = None


@dataclass(frozen=True, kw_only=True)
class BatchDetails:
    """What is measured of a version whose cause is a batch, and of no other: columns of `batches`."""

    rank_before: int
    #: |W_after - W_before|_F / |W_before|_F.
    weight_change: float
    #: |W - (B + M T)|_F / |W|_F, the arithmetic check of the coefficients.
    coefficient_residual: float
    lost_direction_norm_before: float | None
    lost_direction_norm_after: float | None
    #: How M+ was obtained: `downdate`, `decompose` or `refactorise`; `none` when no feature was deleted.
    factor_method: str
    #: Relative, of the weights as they were when the batch began, to the optimum of the graph as it was.
    distance_bound_start_relative: float | None = None
    #: Seconds; None where nothing is repaired.
    factor_age_s: float | None = None


@dataclass(frozen=True)
class RequestNorms:
    """What a batch deleted for one request, and the norms measured for it: columns of `request_audits`."""

    #: How many of the nodes or edges named this batch deleted for the request; the others were gone.
    deleted: int
    #: None where a norm does not exist.
    injected_norm_before: float | None
    injected_norm_after: float | None
    channel_norm_before: float | None
    channel_norm_after: float | None


class Question(StrEnum):
    """What a reader asks of an audit, in the order in which pages answer."""

    LEFT = "Is anything of it left in the weights?"
    DISTANCE = "How far are the weights from retraining?"
    MODEL = "Which model was changed?"


class Form(StrEnum):
    """How a value is written."""

    NUMBER = "number"
    #: A share, written per cent, or in ppm or ppb.
    PERCENT = "percent"
    DIGEST = "digest"
    TEXT = "text"
    #: Several numbers, by name: no column of a file.
    BY_STEP = "by step"


@dataclass(frozen=True)
class Figure:
    """What one figure is called, means and is shown as."""

    label: str
    #: One or two plain sentences.
    meaning: str
    #: A value, for the examples of the interface.
    example: object = None
    #: None where pages show it outside of their tables of figures.
    question: Question | None = None
    form: Form = Form.NUMBER
    unit: str = ""
    #: The most that rounding explains; None where a figure has no such limit.
    limit: float | None = None
    #: Whether receipts and `audit show` have it among the figures; they have some in rows of their own.
    in_receipts: bool = True
    #: Whether answers of the interface have it; exports and events have all.
    in_answers: bool = True
    #: Whether it is computed from the weights as they are, so that of versions published with noise the audit alone
    #: has it.
    is_exact: bool = False
    #: When it is null; empty where it never is.
    absent: str = ""

    @property
    def description(self) -> str:
        """Its meaning, with when it is null."""
        return f"{self.meaning} Null {self.absent}." if self.absent else self.meaning

    def written(self, value: Any) -> str:
        """A value of it, as pages, papers and the terminal show it; a dash for None."""
        if self.form is Form.PERCENT:
            return percent(value)
        text = number(value) if value is None or self.form is Form.NUMBER else str(value)
        return f"{text} {self.unit}" if self.unit and value is not None else text

    def exact(self, value: Any) -> str:
        """The share that `written` gives in ppm or ppb, as a power of ten; empty for every other value."""
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
_version = partial(_model, in_receipts=False)
_promise = partial(_distance, absent="for versions published as they are")
_digest = partial(_version, form=Form.DIGEST)

#: By name, in the order of answers and exports.
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
    "injected_norm_before": _norm(
        "Weight on these nodes before",
        "What the model had learned from these nodes alone: weight of an infinitesimal feature that only they carry.",
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
    "publication_delta": _promise("Promised delta", "Probability that epsilon is exceeded."),
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
#: Steps of a batch, in words and in their order, by their name in `durations_ms`.
_STEPS = {
    "project": "Computing the new weights",
    "repair": "Repairing them",
    "write": "Writing the new version",
    "swap": "Taking it into service",
    "erase": "Erasing the disk",
    "verify": "Measuring what is on the disk",
}
#: What is told of all requests together, by name: the same on the first screen, at the terminal and on reports.
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
    "on_time": "On time",
    "late": "Late",
    "seconds_to_applied": "Time to removal from predictions",
    "seconds_to_completed": "Time to completion",
    "unchanged_projection_share": "No direction removed",
    "model_version": "Model version",
    "rank": "Rank",
    "live_nodes": "Live nodes",
}
#: Those that receipts and `audit show` give as figures.
RECEIPT = {name: each for name, each in FIGURES.items() if each.question and each.in_receipts}
#: Those that the audit alone has of versions published with noise.
EXACT = frozenset(name for name, each in FIGURES.items() if each.is_exact)
#: Those of a request of its own; the others are those of its batch.
OF_REQUEST = frozenset(each.name for each in fields(RequestNorms))


def answers(known: Mapping[str, Any]) -> Mapping[Question, Sequence[tuple[Figure, Any]]]:
    """The figures that are known, with their values, by the question they answer; no question without any."""
    found: dict[Question, list[tuple[Figure, Any]]] = {question: [] for question in Question}
    for name, figure in FIGURES.items():
        if figure.question is not None and known.get(name) is not None:
            found[figure.question].append((figure, known[name]))
    return {question: figures for question, figures in found.items() if figures}


def timed_steps(durations_ms: Mapping[str, float]) -> list[tuple[str, float]]:
    """Milliseconds by step, in words and in the order of the steps; one without words comes last, by its name."""
    known = [(words, durations_ms[name]) for name, words in _STEPS.items() if name in durations_ms]
    return known + [(name, ms) for name, ms in durations_ms.items() if name not in _STEPS]


def values_of(record: object, *kinds: type[Any]) -> dict[str, Any]:
    """What `record` holds of the figures of `kinds`, which it is made of, by name."""
    return {each.name: getattr(record, each.name) for kind in kinds for each in fields(kind)}
