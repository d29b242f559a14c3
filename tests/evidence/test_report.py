"""The report of a month says what the requests and the log say."""

from pathlib import Path

from benchmarks.performance.audit_events import MODEL
from service.audit_records.notable import MOST_NAMED
from service.db.transactions import transaction
from service.evidence.checkpoints import CheckpointRepository
from service.papers.report import Span, read_report, report_paper
from service.settings import Settings
from service.vault.log_keys import LogKeys
from tests.support.databases import Templates
from tests.support.evidence.audit_world import generated


async def test_it_counts_what_failed_was_late_or_drilled_and_names_it(templates: Templates, tmp_path: Path) -> None:
    async with generated(templates) as world:
        await world.rows("UPDATE requests SET due_at = received_at + interval '1 s' WHERE right(id::text, 1) < '4'")
        [[later]] = await world.rows("SELECT id FROM requests WHERE status = 'completed' ORDER BY received_at LIMIT 1")
        failed = [row.id for row in await world.rows("SELECT id FROM requests WHERE status = 'failed' ORDER BY id")]
        settled = "UPDATE requests SET handled_at = now(), ciphertext = NULL, handled_by = :by WHERE id = :id"
        await world.rows(settled, id=failed[0], by=later)
        await world.rows(settled, id=failed[1], by=None)
        async with transaction(world.engine) as connection:
            signed = await CheckpointRepository(connection).sign(LogKeys.open(tmp_path))
            report = await read_report(connection, MODEL, Span.parse("2026-11"))
            other = await read_report(connection, MODEL, Span.parse("2026-10"))
    failures = report.notable.failures
    assert (failures.all, failures.superseded, failures.marked) == (len(failed), 1, 1)
    assert failures.open == len(failed) - 2
    # The open ones first.
    assert [failure.request.ended_at is None for failure in report.notable.failed[-2:]] == [False, False]
    late = sum(month.late for month in report.summary.months)
    assert late > MOST_NAMED == len(report.notable.late)
    assert all(request.late for request in report.notable.late)
    assert len(report.drills) == 3
    assert report.checkpoint == signed
    assert (other.summary.requests, other.notable.failures.all, other.drills) == (0, 0, [])
    page = " ".join(report_paper(report, Settings()).html.split())
    assert f"Of {len(failed)} requests that failed, {failures.open} are open" in page
    assert f"{late} requests received then were late; these are the newest:" in page
    assert "3 drills" in page
    assert signed.root.hex()[:8] in page
