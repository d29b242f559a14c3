"""What the pages say: the names of states, and a sentence on every figure for a reader without mathematics."""

from dataclasses import dataclass
from enum import StrEnum

from projector.forgetting.status import RepairStatus
from service.domain.kinds import RequestKind
from service.domain.states import Guarantee, RequestStatus
from service.observability.metrics import MOST_RESIDUAL, MOST_UNREPAIRED


@dataclass(frozen=True)
class Word:
    """How a state is shown."""

    label: str
    #: Class of the badge: `quiet`, `busy`, `good`, `warn` or `bad`.
    tone: str
    #: What it means.
    meaning: str


@dataclass(frozen=True)
class Figure:
    """How one figure of an audit is shown."""

    label: str
    meaning: str
    #: `number`, `percent` (of a share) or `digest`.
    form: str = "number"
    #: The most that rounding explains; None where a figure has no such limit.
    most: float | None = None


WORDS: dict[StrEnum, Word] = {
    RequestStatus.QUEUED: Word("Queued", "busy", "Accepted and durable; the unlearner has not taken it up yet."),
    RequestStatus.APPLIED: Word(
        "Applied", "busy", "Out of the graph, the weights' span and every prediction; the disk is being erased."
    ),
    RequestStatus.COMPLETED: Word(
        "Completed", "good", "Also gone from Lethe's disk, with every older version of the weights."
    ),
    RequestStatus.FAILED: Word("Failed", "bad", "Nothing was deleted; the request says why, and what to do."),
    RequestStatus.CANCELLED: Word("Cancelled", "quiet", "Withdrawn before the unlearner took it up."),
    **{kind: Word(kind.rules.label, "quiet", kind.rules.meaning) for kind in RequestKind},
    Guarantee.SPAN: Word(
        "Span",
        "warn",
        "The weights lie in the span of the remaining nodes' features. They are not those of a model retrained "
        "without what was deleted, and may still carry what training learned from it.",
    ),
    Guarantee.RETRAINED: Word(
        "As retrained",
        "good",
        "The weights are those of a model retrained without what was deleted, up to the distance that the bound "
        "states.",
    ),
    Guarantee.GRAPH_ONLY: Word(
        "Graph only",
        "warn",
        "What was deleted has left the graph and every prediction. The weights were trained with it and stay as "
        "they are.",
    ),
    RepairStatus.NONE: Word("Not repaired", "quiet", "This model is not re-optimised after deletions."),
    RepairStatus.PENDING: Word("Repair under way", "busy", "The weights are being brought to those of retraining."),
    RepairStatus.CONVERGED: Word(
        "Repaired", "good", "The weights were brought to those of retraining, within the bound."
    ),
    RepairStatus.NOT_CONVERGED: Word(
        "Repair did not converge", "bad", "The weights are not those of retraining; an operator should look into it."
    ),
}

#: Figures of an audit by the question they answer, in the order in which they are shown.
FIGURES: dict[str, dict[str, Figure]] = {
    "Is anything of it left in the weights?": {
        "injected_norm_before": Figure(
            "Weight on these nodes before",
            "How much the model had learned from exactly these nodes: the weight, per unit, that training would give "
            "to a faint marker only they carry.",
        ),
        "injected_norm_after": Figure(
            "Weight on these nodes after",
            "The same after the deletion. It is 0 by construction once the nodes have left the training set, so read "
            "it together with the span residual and the bound, which are measured.",
        ),
        "channel_norm_before": Figure(
            "Weight on the test column before",
            "These nodes carry a marker that was put in before training; this is the weight the model gave it.",
        ),
        "channel_norm_after": Figure(
            "Weight on the test column after",
            "Read from the weights themselves. 0, up to rounding, means that the marker was forgotten.",
        ),
        "directions_removed": Figure(
            "Directions removed",
            "Directions of the feature space that only the deleted nodes supported. 0 is common, and means that the "
            "projection had nothing to remove: what the bound says then decides.",
        ),
        "lost_direction_norm_before": Figure(
            "Weight along them before", "How much of the weights pointed in the removed directions."
        ),
        "lost_direction_norm_after": Figure(
            "Weight along them after", "What is left there. Only rounding may be left, about 10⁻¹⁵ of the weights."
        ),
        "span_residual": Figure(
            "Span residual",
            "Share of the weights that the remaining nodes' features cannot explain, recomputed from the rows that are "
            "left on disk. Only rounding may be left: about 10⁻¹⁵, and never more than 10⁻⁸ once repaired.",
            most=MOST_UNREPAIRED,
        ),
    },
    "How far are the weights from retraining?": {
        "distance_bound_start_relative": Figure(
            "Bound when it began",
            "The weights were at most this far from the optimum of the graph as it was, before anything was deleted: "
            "what training, or an earlier repair, had left undone. A repair moves this as well.",
            "percent",
        ),
        "distance_bound_before_relative": Figure(
            "Bound before repair",
            "The weights were at most this far from those of a model retrained without the deleted data, as a share "
            "of their size.",
            "percent",
        ),
        "distance_bound_after_relative": Figure(
            "Bound after repair",
            "They are at most this far from them since. This is proved from the gradient, without retraining.",
            "percent",
        ),
        "repair_tolerance": Figure(
            "Bound allowed",
            "The most that the bound after repair may be for the weights to count as retrained.",
            "percent",
        ),
        "distance_bound_before": Figure("The same, absolute, before", "The bound in units of the weights."),
        "distance_bound_after": Figure("The same, absolute, after", "The bound in units of the weights."),
        "repair_iterations": Figure("Steps of repair", "How often the weights were re-optimised on what remains."),
        "repair_weight_change": Figure(
            "Moved by the repair", "How much the repair alone changed the weights, as a share of their size.", "percent"
        ),
        "factor_age_s": Figure(
            "Factor kept in memory",
            "Seconds that a factor of the loss' curvature made before the deletion may stay in memory after it, to "
            "speed up repairs. It is never written to disk, and does not influence what the weights converge to.",
        ),
        "weight_change": Figure(
            "Moved by the batch", "How much the whole update changed the weights, as a share of their size.", "percent"
        ),
    },
    "Which model was changed?": {
        "model_version_before": Figure("Model version before", "Every update of the model makes a new version."),
        "model_version_after": Figure("Model version after", "Predictions name the version they come from."),
        "weights_sha256_before": Figure("Weights before", "SHA-256 of the weights.", "digest"),
        "weights_sha256_after": Figure("Weights after", "SHA-256 of the weights since.", "digest"),
        "repair_version": Figure("Repaired in version", "The version in which the repair ended."),
        "repair_weights_sha256": Figure("Weights of that version", "SHA-256 of the weights.", "digest"),
        "rank_before": Figure("Rank before", "How many independent directions the nodes' features spanned."),
        "rank_after": Figure("Rank after", "How many those of the remaining nodes span."),
        "deleted": Figure(
            "Deleted for this request", "The others it names, if any, had been deleted by earlier requests."
        ),
        "coefficient_residual": Figure(
            "Bookkeeping error",
            "Rounding in Lethe's own books. It checks arithmetic, and proves nothing about forgetting.",
            most=MOST_RESIDUAL,
        ),
    },
}

#: Steps of a batch, in words, by their name in `durations_ms`.
STEPS = {
    "project": "Computing the new weights",
    "repair": "Repairing them",
    "write": "Writing the new version",
    "swap": "Taking it into service",
    "erase": "Erasing the disk",
    "verify": "Measuring what is on the disk",
}


def words_of(state: StrEnum) -> Word:
    """How a state is shown."""
    return WORDS[state]
