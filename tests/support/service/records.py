"""A request and a batch to vary."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from service.domain.kinds import RequestKind
from service.domain.records import BatchRecord, DeletionRequest
from service.domain.states import RequestStatus

#: A batch that lost one direction, and whose repair has not ended.
BATCH = BatchRecord(
    id=UUID(int=1),
    model="tiny",
    requests=5,
    nodes=9,
    features=1,
    edges=2,
    model_version_before=6,
    model_version_after=7,
    weights_sha256_before="c" * 64,
    weights_sha256_after="d" * 64,
    rank_before=1431,
    rank_after=1430,
    directions_removed=1,
    lost_direction_norm_before=0.25,
    lost_direction_norm_after=1e-17,
    weight_change=0.011,
    coefficient_residual=2e-14,
    factor_method="downdate",
    device="cpu",
    durations_ms={"project": 1.9, "repair": 410.0},
    span_residual=None,
    distance_bound_start_relative=3e-12,
    distance_bound_before=4.1,
    distance_bound_before_relative=0.2,
    factor_age_s=60.0,
    live_nodes=58,
)


def queued_request(received_at: datetime, **changes: Any) -> DeletionRequest:
    """Return a queued request for one node, due after 30 days."""
    given: dict[str, Any] = {
        "id": UUID(int=1),
        "model": "tiny",
        "kind": RequestKind.NODE,
        "status": RequestStatus.QUEUED,
        "count": 1,
        "reference": None,
        "api_key_id": UUID(int=2),
        "due_at": received_at + timedelta(days=30),
    }
    return DeletionRequest(received_at=received_at, **given | changes)
