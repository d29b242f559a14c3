"""What the pages say: the names of states."""

from dataclasses import dataclass
from enum import StrEnum

from projector.forgetting.status import RepairStatus
from service.audit_records.queries import Order
from service.dashboard.words.filters import Answer, Drills
from service.domain.guarantees import GUARANTEES
from service.domain.kinds import RequestKind
from service.domain.states import Guarantee, RequestStatus
from service.webhooks.deliveries import DeliveryState


@dataclass(frozen=True)
class Word:
    """How a state is shown."""

    label: str
    #: Class of the badge: `quiet`, `busy`, `good`, `warn` or `bad`.
    tone: str
    #: What it means.
    meaning: str


WORDS: dict[StrEnum, Word] = {
    RequestStatus.QUEUED: Word("Queued", "busy", "Accepted and stored durably; work on it has not begun."),
    RequestStatus.APPLIED: Word(
        "Applied", "busy", "Out of the graph and every prediction; being erased from the disk."
    ),
    RequestStatus.COMPLETED: Word(
        "Completed", "good", "Erased from the disk too, with every older version of the weights."
    ),
    RequestStatus.FAILED: Word("Failed", "bad", "Nothing was deleted; its page says why and what to do."),
    RequestStatus.CANCELLED: Word("Cancelled", "quiet", "Withdrawn by the caller before work on it began."),
    Answer.YES: Word("Yes", "quiet", "Only these."),
    Answer.NO: Word("No", "quiet", "All but these."),
    Drills.ONLY: Word("Only drills", "quiet", "Drills and nothing else."),
    Drills.INCLUDED: Word("Included", "quiet", "Drills among all others."),
    Order.NEWEST: Word("Newest first", "quiet", "Received last at the top."),
    Order.OLDEST: Word("Oldest first", "quiet", "Received first at the top."),
    Order.DUE: Word("Due first", "quiet", "Due first at the top."),
    Order.DUE_LAST: Word("Due last", "quiet", "Due last at the top."),
    **{kind: Word(kind.rules.label, "quiet", kind.rules.meaning) for kind in RequestKind},
    Guarantee.SPAN: Word("Span", "warn", GUARANTEES[Guarantee.SPAN]),
    Guarantee.RETRAINED: Word("Retrained", "good", GUARANTEES[Guarantee.RETRAINED]),
    Guarantee.GRAPH_ONLY: Word("Graph only", "warn", GUARANTEES[Guarantee.GRAPH_ONLY]),
    RepairStatus.NONE: Word("No repair", "quiet", "This model is not re-optimised after deletions."),
    RepairStatus.PENDING: Word("Repair pending", "busy", "The weights are being brought to those of retraining."),
    RepairStatus.CONVERGED: Word(
        "Repair converged", "good", "The weights were brought to those of retraining, within the bound."
    ),
    RepairStatus.NOT_CONVERGED: Word(
        "Repair not converged", "bad", "The weights are not those of retraining; an operator should look into it."
    ),
    DeliveryState.WAITING: Word("Waiting", "busy", "Will be sent at the next attempt."),
    DeliveryState.DELIVERED: Word("Delivered", "good", "The receiver accepted it."),
    DeliveryState.GIVEN_UP: Word("Given up", "bad", "Not accepted within three days, or the receiver was removed."),
}


def words_of(state: StrEnum) -> Word:
    """How a state is shown."""
    return WORDS[state]
