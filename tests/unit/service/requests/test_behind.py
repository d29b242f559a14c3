"""What waits behind a request on hold: requests for the same nodes and edges, and what arrived after those."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from service.domain.kinds import RequestKind
from service.domain.records import QueuedRequest, Targets
from service.domain.states import RequestStatus
from service.requests.holds import Behind, Waiting, behind

NODE, EDGE, LABEL, ADDITION, CORRECTION = (
    RequestKind.NODE,
    RequestKind.EDGE,
    RequestKind.LABEL,
    RequestKind.ADDITION,
    RequestKind.CORRECTION,
)


def waiting(number: int, kind: RequestKind, *named: str, held: int | None = None) -> Waiting:
    """Return the `number`th request; a name such as `a-b` is an edge."""
    edges = tuple((one, other) for one, dash, other in (name.partition("-") for name in named) if dash)
    targets = Targets(nodes=tuple(name for name in named if "-" not in name), edges=edges)
    at = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(hours=number)
    request = QueuedRequest(
        UUID(int=number), kind, RequestStatus.QUEUED, targets.count, None, None, received_at=at, batch_id=None
    )
    return Waiting(request, targets, None if held is None else UUID(int=held))


@pytest.mark.parametrize(
    ("held", "other", "waits"),
    [
        ((NODE, "a"), (NODE, "a", "b"), True),
        ((NODE, "a"), (NODE, "b"), False),
        ((NODE, "a"), (CORRECTION, "a"), True),
        ((LABEL, "a"), (NODE, "a"), True),
        ((NODE, "a"), (EDGE, "b-a"), True),
        ((NODE, "a"), (ADDITION, "new", "new-a"), True),
        ((EDGE, "a-b"), (NODE, "b"), True),
        ((EDGE, "a-b"), (EDGE, "b-a"), True),
        ((EDGE, "a-b"), (EDGE, "b-c"), False),
        ((CORRECTION, "a"), (NODE, "a"), True),
        ((ADDITION, "a"), (NODE, "a"), True),
        ((ADDITION, "a", "a-b"), (NODE, "b"), False),
        ((ADDITION, "a-b"), (EDGE, "a-b"), True),
    ],
)
def test_a_request_waits_for_a_held_one_that_names_the_same(
    held: tuple[RequestKind, str], other: tuple[RequestKind, str], waits: bool
) -> None:
    obstacle = waiting(2, *held, held=2)
    for arrived in (1, 3):
        found = behind([waiting(arrived, *other)], [obstacle])
        assert found == ({UUID(int=arrived): Behind(UUID(int=2), UUID(int=2))} if waits else {})


def test_what_arrives_after_one_that_waits_keeps_its_place_and_what_came_before_goes_on() -> None:
    obstacles = [waiting(1, NODE, "a", held=1), waiting(4, CORRECTION, "a", "b", held=1)]
    claimed = [
        waiting(6, CORRECTION, "c", "d"),
        waiting(5, NODE, "b", "c"),
        waiting(3, NODE, "b"),
        waiting(7, NODE, "e"),
    ]
    assert behind(claimed, obstacles) == {
        UUID(int=5): Behind(UUID(int=1), UUID(int=4)),
        UUID(int=6): Behind(UUID(int=1), UUID(int=5)),
    }
