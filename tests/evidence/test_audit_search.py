"""A search finds the same as looking at every request."""

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest

from projector.forgetting.status import RepairStatus
from service.domain.kinds import RequestKind
from service.domain.states import Guarantee, RequestStatus
from service.reports.queries import AuditEntry, AuditFilters, Order, Searched, Threshold
from tests.support.databases import Templates
from tests.support.everyday import everyday
from tests.support.evidence.audit_world import UNTIL, AuditWorld, generated

FILTERS = {
    "all": AuditFilters(),
    "status": AuditFilters(status=RequestStatus.FAILED),
    "kind": AuditFilters(kind=RequestKind.EDGE),
    "status and kind": AuditFilters(status=RequestStatus.FAILED, kind=RequestKind.EDGE),
    "guarantee": AuditFilters(guarantee=Guarantee.SPAN),
    "repair": AuditFilters(repair=RepairStatus.NOT_CONVERGED),
    "time": AuditFilters(since=UNTIL - timedelta(days=3), until=UNTIL - timedelta(days=1)),
    "status, within days that are cut": AuditFilters(
        status=RequestStatus.FAILED, since=UNTIL - timedelta(days=6), until=UNTIL - timedelta(hours=30)
    ),
    "states that exclude each other": AuditFilters(guarantee=Guarantee.RETRAINED, repair=RepairStatus.NONE),
    "norm before": AuditFilters(thresholds={Searched.INJECTED_NORM_BEFORE: Threshold(0.2, 0.6)}),
    "norm after": AuditFilters(thresholds={Searched.INJECTED_NORM_AFTER: Threshold(at_least=1e-3)}),
    "bound": AuditFilters(thresholds={Searched.DISTANCE_BOUND_AFTER_RELATIVE: Threshold(at_least=1e-6)}),
    "a converged repair with a large bound": AuditFilters(
        repair=RepairStatus.CONVERGED,
        thresholds={Searched.DISTANCE_BOUND_AFTER_RELATIVE: Threshold(at_least=1e-6)},
    ),
    "an edge with a norm": AuditFilters(
        kind=RequestKind.EDGE, thresholds={Searched.INJECTED_NORM_BEFORE: Threshold(at_least=0)}
    ),
    "open": AuditFilters(open=True),
    "open and failed": AuditFilters(open=True, status=RequestStatus.FAILED),
    "late": AuditFilters(late=True),
    "in time, and with a threshold": AuditFilters(
        late=False, open=False, thresholds={Searched.INJECTED_NORM_BEFORE: Threshold(0.2, 0.6)}
    ),
    "drills": AuditFilters(drills=True),
    "no drills, failed": AuditFilters(drills=False, status=RequestStatus.FAILED),
    "due by a day": AuditFilters(due_before=UNTIL + timedelta(days=24)),
    "a part of references": AuditFilters(part_of_reference="sr-1"),
    "a part of references, of features": AuditFilters(part_of_reference="R-1", kind=RequestKind.FEATURES),
    "a part that is a pattern elsewhere": AuditFilters(part_of_reference="%"),
    "two thresholds": AuditFilters(
        thresholds={
            Searched.DISTANCE_BOUND_BEFORE_RELATIVE: Threshold(at_most=0.03),
            Searched.SPAN_RESIDUAL: Threshold(at_least=1.2e-15),
        }
    ),
}


@pytest.fixture
async def world(templates: Templates) -> AsyncIterator[AuditWorld]:
    async with generated(templates) as world:
        # One that is committed but not yet applied counts as queued, and has no audit.
        await world.rows("UPDATE versions SET finished_at = NULL, span_residual = NULL WHERE number = 1")
        # Some are late, both ended and open ones.
        await world.rows("UPDATE requests SET due_at = received_at + interval '1 s' WHERE right(id::text, 1) < '4'")
        yield world


def keeps(filters: AuditFilters, entry: AuditEntry, drills: set[UUID]) -> bool:
    request, audit = entry.request, entry.audit
    for wanted, found in (
        (filters.status, request.status),
        (filters.kind, request.kind),
        (filters.guarantee, request.guarantee),
        (filters.repair, request.repair),
        (filters.open, request.ended_at is None),
        (filters.late, request.late),
        (filters.drills, request.id in drills),
    ):
        if wanted is not None and wanted is not found:
            return False
    if filters.due_before and request.due_at >= filters.due_before:
        return False
    if filters.part_of_reference and filters.part_of_reference.lower() not in (request.reference or "").lower():
        return False
    if filters.since and request.received_at < filters.since:
        return False
    if filters.until and request.received_at >= filters.until:
        return False
    for figure, threshold in filters.thresholds.items():
        owner = None if audit is None else audit.norms if hasattr(audit.norms, figure) else audit.batch
        value = None if owner is None else getattr(owner, figure)
        if value is None:
            return False
        if threshold.at_least is not None and value < threshold.at_least:
            return False
        if threshold.at_most is not None and value > threshold.at_most:
            return False
    return True


def ids(entries: list[AuditEntry]) -> list[UUID]:
    return [entry.request.id for entry in entries]


@pytest.mark.ci
@pytest.mark.parametrize("in_every_order", everyday([False, True], False))
async def test_a_search_finds_what_looking_at_every_request_finds(world: AuditWorld, in_every_order: bool) -> None:
    everything = await world.found(AuditFilters(), limit=100_000)
    assert everything == sorted(everything, key=lambda one: (one.request.received_at, one.request.id), reverse=True)
    drills = {row.request_id for row in await world.rows("SELECT request_id FROM drills")}
    kept = {}
    for place, (name, filters) in enumerate(FILTERS.items()):
        kept[name] = ids([entry for entry in everything if keeps(filters, entry, drills)])
        assert ids((await world.page(filters, limit=5)).entries) == kept[name][:5], name
        assert await world.counted(filters) == len(kept[name]), name
        # Each filter in one order, and each order with several filters.
        for order in Order if in_every_order else [[*Order][place % len(Order)]]:
            expected = [entry for entry in everything if entry.request.id in kept[name]]
            expected.sort(key=lambda one: (getattr(one.request, order.by), one.request.id), reverse=order.descends)
            assert ids(await world.found(filters, limit=40, order=order)) == ids(expected), (name, order)
    found_some = {name for name, found in kept.items() if found}
    assert found_some == FILTERS.keys() - {
        "norm after",
        "states that exclude each other",
        "a converged repair with a large bound",
        "an edge with a norm",
        "a part that is a pattern elsewhere",
    }


async def test_audits_come_with_applied_and_completed_requests_alone(world: AuditWorld) -> None:
    for entry in await world.found(AuditFilters(), limit=500):
        assert (entry.audit is not None) == (entry.request.status is RequestStatus.COMPLETED)
