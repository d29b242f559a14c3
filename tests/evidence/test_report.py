"""A month's report agrees with the requests and the log."""

from pathlib import Path

import pytest

from benchmarks.performance.audit.events import MODEL
from service.db.transactions import transaction
from service.domain.states import RequestStatus
from service.log.signed_checkpoints import CheckpointRepository
from service.log.signing_keys import LogKeys
from service.reports.period_report import MOST_NAMED, Report, Span, read_report, report_paper
from service.settings import Settings
from tests.support.databases import Templates
from tests.support.evidence.audit_world import AuditWorld, generated


async def report_of(world: AuditWorld, keys: Path, name: str) -> Report:
    async with transaction(world.engine) as connection:
        await CheckpointRepository(connection).sign(LogKeys.open(keys))
        return await read_report(connection, MODEL, Span.parse(name))


def words_of(report: Report) -> str:
    return " ".join(report_paper(report, Settings()).html.split())


@pytest.mark.ci
async def test_it_counts_what_failed_was_late_or_drilled_and_names_some(templates: Templates, tmp_path: Path) -> None:
    async with generated(templates) as world:
        soon = "UPDATE requests SET due_at = received_at + interval '1 s' WHERE right(id::text, 1) < '4'"
        await world.rows(f"{soon} AND status <> 'queued'")
        [[later]] = await world.rows("SELECT id FROM requests WHERE status = 'completed' ORDER BY received_at LIMIT 1")
        failed = [row.id for row in await world.rows("SELECT id FROM requests WHERE status = 'failed' ORDER BY id")]
        settled = "UPDATE requests SET handled_at = now(), ciphertext = NULL, handled_by = :by WHERE id = :id"
        await world.rows(settled, id=failed[0], by=later)
        await world.rows(settled, id=failed[1], by=None)
        late_and_open = "SELECT count(*) FROM requests WHERE ended_at IS NULL AND due_at < now()"
        [[late_open]] = await world.rows(late_and_open)
        report = await report_of(world, tmp_path, "2026-11")
        other = await report_of(world, tmp_path, "2026-10")
    failures = report.notable.failures
    assert (failures.all, failures.superseded, failures.marked) == (len(failed), 1, 1)
    assert failures.open == len(failed) - 2
    # The open ones first.
    assert [failure.request.ended_at is None for failure in report.notable.failed[-2:]] == [False, False]
    late = sum(month.late for month in report.summary.months)
    assert late > MOST_NAMED == len(report.notable.late)
    assert all(request.late for request in report.notable.late)
    are_open = [request.ended_at is None for request in report.notable.late]
    assert report.notable.late_open == are_open.count(True) == late_open > 0
    assert are_open == sorted(are_open, reverse=True)
    assert len(report.drills) == 3
    assert (other.summary.requests, other.notable.failures.all, other.drills) == (0, 0, [])
    page = words_of(report)
    assert (
        f"{len(failed)} requests failed in November 2026, or were received then and failed later: "
        f"{failures.open} are open" in page
    )
    assert f"{late} requests received in November 2026 were late." in page
    assert f"Late: {MOST_NAMED} of {late}" in page
    assert "3 drills: " in page
    assert f"{report.summary.completed_retrained:,} of " in page
    # A month without requests says so, and reports no times.
    assert "There were no requests in October 2026." in words_of(other)
    assert "within –" not in words_of(other)
    assert report.checkpoint.root.hex()[:8] in page
    assert "Annex" not in words_of(other)


async def test_what_is_counted_as_failed_is_among_what_it_names_whenever_it_failed(
    templates: Templates, tmp_path: Path
) -> None:
    async with generated(templates) as world:
        one, another, *_ = (row.id for row in await world.rows("SELECT id FROM requests WHERE status = 'failed'"))
        await world.rows("UPDATE requests SET received_at = '2026-10-31T23:00Z' WHERE id = :id", id=one)
        await world.rows(
            "UPDATE requests SET status = 'queued', failed_at = NULL, failure = NULL WHERE id = :id", id=another
        )
        withdrawn = "UPDATE requests SET status = 'cancelled', cancelled_at = now(), ciphertext = NULL WHERE id = :id"
        await world.rows(withdrawn, id=another)
        october = await report_of(world, tmp_path, "2026-10")
        november = await report_of(world, tmp_path, "2026-11")
    assert october.summary.by_status[RequestStatus.FAILED] == october.notable.failures.all == 1
    assert [failure.request.id for failure in october.notable.failed] == [one]
    failures = november.notable.failures
    assert (failures.cancelled, failures.open) == (1, failures.all - 1)
    assert "1 cancelled" in words_of(november)
