"""What happened to a request, step by step, and what comes next."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from projector.forgetting.status import RepairStatus
from service.domain.formats import moment
from service.domain.records import DeletionRequest
from service.domain.states import EventType, RequestStatus
from service.evidence.events import Event


@dataclass(frozen=True)
class Step:
    """One step of a request's way."""

    label: str
    #: `done`, `now` while it is worked on, `waiting`, or `failed`.
    state: str
    sentence: str
    at: datetime | None = None
    #: Time since the request was received.
    after: timedelta | None = None


def timeline(request: DeletionRequest, events: Sequence[Event]) -> list[Step]:
    """The steps of `request` in order; what is still to come follows what was done."""
    received = Step(
        "Received",
        "done",
        "Stored durably. The ids that it names are encrypted under a key of their own.",
        request.received_at,
    )
    steps = [received, *_failed(request, events), *_decided(request, events), *_outcome(request, events)]
    # What has a time comes first, in the order of time; a repair may end after the erasure.
    done = sorted((step for step in steps if step.at is not None), key=lambda step: step.at or request.received_at)
    return [*done, *(step for step in steps if step.at is None)]


def is_final(request: DeletionRequest) -> bool:
    """Whether nothing more can happen to a request by itself."""
    if request.status is RequestStatus.COMPLETED:
        return request.repair is not RepairStatus.PENDING
    return request.ended_at is not None


def _outcome(request: DeletionRequest, events: Sequence[Event]) -> list[Step]:
    if request.status is RequestStatus.FAILED:
        return []
    if request.status is RequestStatus.CANCELLED:
        text = "Withdrawn before work on it began. The ids that it named were erased."
        return [_done(request, request.cancelled_at, "Cancelled", text)]
    if request.status is RequestStatus.COMPLETED and request.applied_at is None:
        text = "Nothing was left to do: earlier requests had deleted everything that it names."
        return [_done(request, request.completed_at, "Completed", text)]
    return [_applied(request), *_repaired(request, events), _completed(request)]


def _failed(request: DeletionRequest, events: Sequence[Event]) -> list[Step]:
    """Every time the request failed; the newest one says why, the earlier ones were followed by another attempt."""
    text = "It could not be applied, and an operator retried it."
    failures = [event for event in events if event.type is EventType.FAILED]
    steps = [_done(request, event.created_at, "Failed", text, "failed") for event in failures]
    if request.status is RequestStatus.FAILED:
        steps[-1:] = [_done(request, request.failed_at, "Failed", request.failure or "", "failed")]
    return steps


def _decided(request: DeletionRequest, events: Sequence[Event]) -> list[Step]:
    """That it was given more time, and that one which failed was handled."""
    steps = []
    for event in events:
        reason = event.payload.get("reason")
        if event.type is EventType.EXTENDED:
            due_at = moment(datetime.fromisoformat(event.payload["due_at"]))
            steps.append(
                _done(request, event.created_at, "Deadline extended", f"Now due {due_at} UTC. Reason: {reason}")
            )
        elif event.type is EventType.HANDLED:
            text = reason or "Later requests have deleted everything that this one names."
            steps.append(_done(request, event.created_at, "Handled", text))
    return steps


def _applied(request: DeletionRequest) -> Step:
    if request.applied_at is None:
        return Step("Applied", "now", "Waiting for its turn, or the new model is being computed.")
    return _done(request, request.applied_at, "Applied", request.kind.rules.applied)


def _repaired(request: DeletionRequest, events: Sequence[Event]) -> list[Step]:
    # Why it fell short, the explanation says: no convergence, not wanted any more, or the model was replaced.
    short = "The repair ended or was abandoned before the weights reached those of retraining."
    text = "The weights were re-optimised on the remaining graph: they are those of retraining, within the bound."
    ends = {EventType.NOT_REPAIRED: ("Not repaired", short, "failed"), EventType.REPAIRED: ("Repaired", text, "done")}
    ended = [_done(request, event.created_at, *ends[event.type]) for event in events if event.type in ends]
    if ended:
        return ended
    if request.repair is RepairStatus.PENDING:
        return [Step("Repaired", "now", "The weights are being re-optimised. Erasure does not wait for it.")]
    if request.repair is RepairStatus.NOT_CONVERGED:
        return [Step("Not repaired", "failed", "The repair did not converge; an operator should look into it.")]
    return []


def _completed(request: DeletionRequest) -> Step:
    erased = request.kind.rules.erased
    if request.completed_at is None:
        state = "now" if request.status is RequestStatus.APPLIED else "waiting"
        return Step("Completed", state, f"{erased}, ids and older weights will be erased from the disk.")
    text = f"{erased}, ids and older weights are gone from the disk. The key to the ids in the request was destroyed."
    return _done(request, request.completed_at, "Completed", text)


def _done(request: DeletionRequest, at: datetime | None, label: str, text: str, state: str = "done") -> Step:
    return Step(label, state, text, at, None if at is None else at - request.received_at)
