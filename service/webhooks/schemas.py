"""Events of requests in the feed and in webhooks, and the state of deliveries."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from service.domain.states import Milestone, RequestStatus
from service.webhooks.deliveries import Delivery, DeliveryState
from service.webhooks.feed import FeedEvent

_EVENT: dict[str, Any] = {
    "id": "3f1d8f1e-6f0b-4b55-9a53-0d5e0c6d7a11",
    "type": "deletion.completed",
    "timestamp": "2026-11-20T09:30:01.482113Z",
    "data": {
        "request": "0b9f4f4e-95a2-4dfb-9c43-7b9d0c1d2e3f",
        "reference": "DSR-17",
        "status": "completed",
        "deadline": "2026-12-20T09:29:58.104211Z",
    },
}
_DELIVERY: dict[str, Any] = {
    "id": "a44a93e0-b5f8-494b-873e-5c372527febd",
    "endpoint": "https://dsr.example",
    "event": _EVENT,
    "state": "waiting",
    "attempts": 3,
    "answer": "It answered 503.",
    "created_at": "2026-11-20T09:30:01.944120Z",
    "next_attempt_at": "2026-11-20T09:30:31.702114Z",
    "delivered_at": None,
    "given_up_at": None,
}


class EventData(BaseModel):
    """The request of an event; contains none of its targets and no measurements."""

    request: UUID = Field(description="The id from the 202 answer.")
    reference: str | None = Field(
        description="Reference of the caller; in the feed, for completed requests only with audit:read."
    )
    status: RequestStatus = Field(description="Status of the request after this event.")
    deadline: datetime = Field(description="Deadline at the time of the event.")


class EventAnswer(BaseModel):
    """One event, as in the feed and as a webhook's body."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EVENT]})

    id: UUID = Field(description="The same at every delivery; a webhook also has it as `webhook-id`.")
    type: str = Field(
        description="`deletion.`, `addition.` or `correction.`, and one of "
        + ", ".join(map("`{}`".format, Milestone))
        + "."
    )
    timestamp: datetime = Field(description="When it happened.")
    data: EventData


class FeedPage(BaseModel):
    """Events, oldest first; empty if nothing has happened since."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"events": [_EVENT]}]})

    events: list[EventAnswer]


class DeliveryAnswer(BaseModel):
    """One event on its way to one endpoint."""

    id: UUID
    endpoint: str = Field(description="Scheme, host and port of its address.")
    event: EventAnswer
    state: DeliveryState
    attempts: int
    answer: str | None = Field(description="Result of the last attempt.")
    created_at: datetime
    next_attempt_at: datetime | None
    delivered_at: datetime | None
    given_up_at: datetime | None


class DeliveryPage(BaseModel):
    """A page of deliveries, newest first."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"deliveries": [_DELIVERY], "next_cursor": None}]})

    deliveries: list[DeliveryAnswer]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null on the last page.")


def event_answer(event: FeedEvent, *, reads_audit: bool = True) -> EventAnswer:
    """Return an event's API form; without `reads_audit`, as for a key without audit:read."""
    hidden = event.is_completed and not reads_audit
    return EventAnswer(
        id=event.id,
        type=f"{event.kind if event.kind.rules.joins else 'deletion'}.{event.milestone}",
        timestamp=event.at,
        data=EventData(
            request=event.request_id,
            reference=None if hidden else event.reference,
            status=event.status,
            deadline=event.due_at,
        ),
    )


def delivery_answer(delivery: Delivery) -> DeliveryAnswer:
    """Return a delivery's API form for a key with audit:read."""
    event = event_answer(delivery.event)
    return DeliveryAnswer(**vars(delivery) | {"event": event}, endpoint=delivery.origin, state=delivery.state)
