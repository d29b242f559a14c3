"""The leaves of events, byte for byte as from the beginning: a signed log stays valid."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from projector.forgetting.status import RepairStatus
from service.domain.figures import RequestNorms
from service.domain.kinds import RequestKind
from service.domain.records import RequestAudit
from service.domain.states import UNREQUESTED, Cause, EventType, Guarantee, RequestStatus
from service.domain.versions import Recovery, Version
from service.log.commitments import Commitments
from service.log.leaves import (
    AlreadyDeleted,
    AuditFigures,
    Content,
    Decided,
    Failed,
    HandledByDeletion,
    LoggedEvent,
    LogKeyAdded,
    ModelCertified,
    ModelImported,
    ModelRecovered,
    leaf_data,
    redact,
)
from service.version import VERSION
from tests.support.service.records import BATCH, queued_request

#: One leaf a line, in the order of `EventType`; made before the contents had their own types.
LEAVES = Path(__file__).with_name("event_leaves.jsonl")
AT = datetime(2026, 3, 2, 9, 15, 4, 120000, tzinfo=UTC)
REPAIRED = replace(
    BATCH,
    repair=RepairStatus.CONVERGED,
    repair_iterations=3,
    repair_weight_change=0.01,
    repair_version=8,
    repair_weights_sha256="e" * 64,
    repair_tolerance=1e-8,
    distance_bound_after=2e-9,
    distance_bound_after_relative=1e-10,
    span_residual=3e-15,
)
NORMS = RequestNorms(2, 0.23, 0.0, None, None)
VERSION_MADE = Version(
    id=UUID(int=2),
    model="tiny",
    number=9,
    fencing=3,
    cause=Cause.IMPORT,
    folder="9-3",
    digest="a" * 64,
    weights_sha256="f" * 64,
    number_before=8,
    weights_sha256_before="e" * 64,
    rank=12,
    live_nodes=56,
    edges=80,
    device="cpu",
    durations_ms={"erase": 1.0},
    deleted_nodes=2,
    deleted_features=1,
    deleted_edges=3,
    span_residual=1e-15,
    distance_bound_before=0.5,
    distance_bound_after=1e-9,
    distance_bound_before_relative=0.1,
    distance_bound_after_relative=1e-10,
    repair=RepairStatus.CONVERGED,
    repair_version=9,
    repair_iterations=4,
    repair_tolerance=1e-8,
)
REQUEST = queued_request(
    AT,
    id=UUID(int=3),
    kind=RequestKind.FEATURES,
    status=RequestStatus.APPLIED,
    count=2,
    reference="DSR-17",
    api_key_id=UUID(int=4),
    due_at=AT,
    guarantee=Guarantee.SPAN,
    repair=RepairStatus.PENDING,
    explanation="The projection removed one direction.",
)
CERTIFIED = replace(
    VERSION_MADE,
    publication_epsilon=1.0,
    publication_delta=1e-4,
    publications_planned=100,
    publication_mu=0.01,
    commitment_salt="ab" * 32,
)
CONTENTS: dict[EventType, Content] = {
    EventType.APPLIED: AuditFigures(RequestKind.FEATURES, RequestAudit(BATCH, NORMS)),
    EventType.REPAIRED: AuditFigures(RequestKind.NODE, RequestAudit(REPAIRED, NORMS)),
    EventType.NOT_REPAIRED: AuditFigures(
        RequestKind.EDGE, RequestAudit(replace(BATCH, repair=RepairStatus.NOT_CONVERGED), NORMS)
    ),
    EventType.COMPLETED: AlreadyDeleted(RequestKind.FEATURES, (UUID(int=5), UUID(int=6))),
    EventType.FAILED: Failed(),
    EventType.IMPORTED: ModelImported(VERSION_MADE),
    EventType.RECOVERED: ModelRecovered(Recovery(VERSION_MADE, "8-2", "8-1", unknown_nodes=1)),
    EventType.LOG_KEY_ADDED: LogKeyAdded(2, "lethe+1+AAAA"),
    EventType.CERTIFIED: ModelCertified(CERTIFIED),
    EventType.HANDLED: HandledByDeletion((UUID(int=5), UUID(int=6))),
    EventType.EXTENDED: Decided("There are many.", UUID(int=4), AT, AT),
    EventType.HELD: Decided("Needed in a lawsuit.", UUID(int=4), AT),
    EventType.RELEASED: Decided(None, UUID(int=4), AT, AT),
}


def test_every_event_becomes_the_leaf_that_it_always_became() -> None:
    made = [
        leaf_data(
            index,
            LoggedEvent(
                id=100 + index,
                type=event,
                payload=redact(CONTENTS[event].document())[0],
                created_at=AT,
                request=None if event in UNREQUESTED else REQUEST,
                commitments=Commitments(bytes(range(64)), bytes(32)),
            ),
        )
        for index, event in enumerate(EventType)
    ]
    wanted = LEAVES.read_text().replace('"lethe VERSION"', json.dumps(f"lethe {VERSION}")).splitlines()
    assert [leaf.decode() for leaf in made] == wanted
