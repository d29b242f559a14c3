"""The feed: every move appears once, in an order without gaps, without the targets of a request."""

from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy.exc import DBAPIError

from projector.forgetting.status import RepairStatus
from service.db.transactions import transaction
from service.domain.states import Guarantee
from service.requests.moves import AppliedOutcome, RequestMoves
from service.webhooks.feed import FeedEvent, FeedRepository
from tests.support.service.db_harness import Said
from tests.support.service.webhook_world import DEADLINE, WebhookWorld


async def published(world: WebhookWorld, request_id: UUID) -> list[str]:
    """Publish all events. Returns those of a request, in order."""
    await world.webhooks().publish()
    return [event.milestone.value for event in await world.feed() if event.request_id == request_id]


async def test_every_move_of_a_request_is_published_in_order(world: WebhookWorld) -> None:
    request_id = await world.db.accept()
    await world.complete([request_id])
    assert await published(world, request_id) == ["accepted", "applied", "completed"]
    [accepted, applied, completed] = await world.feed()
    assert [accepted.status, applied.status, completed.status] == ["queued", "applied", "completed"]
    assert {event.reference for event in (accepted, applied, completed)} == {"DSR-17"}
    assert completed.due_at - accepted.at == DEADLINE


async def test_a_repair_is_published_after_the_batch_that_it_belongs_to(world: WebhookWorld) -> None:
    request_id = await world.db.accept()
    batch = await world.db.batch([request_id])
    outcome = AppliedOutcome(request_id, Guarantee.RETRAINED, RepairStatus.CONVERGED, "Repaired.", Said(n=1))
    async with transaction(world.db.engine) as connection:
        await RequestMoves(connection).mark_applied(batch, [outcome])
    assert await published(world, request_id) == ["accepted", "applied", "repaired"]


async def test_a_move_that_is_taken_back_is_not_published(world: WebhookWorld) -> None:
    request_id = await world.db.accept()
    async with world.db.engine.connect() as connection:
        await RequestMoves(connection).mark_failed(request_id, "It names what is not there.")
        await connection.rollback()
    assert await published(world, request_id) == ["accepted"]


async def test_whoever_reads_on_misses_nothing_that_commits_late(world: WebhookWorld) -> None:
    """A transaction that numbers its event first and commits last appears after those already reported."""
    first, second = await world.db.accept(), await world.db.accept()
    seen: list[FeedEvent] = []
    async with transaction(world.db.engine) as connection:
        await RequestMoves(connection).mark_failed(first, "Slow.")
        third = await world.db.accept()
        await world.webhooks().publish()
        seen += await world.feed()
        assert [event.request_id for event in seen] == [first, second, third]
    await world.webhooks().publish()
    seen += await world.feed(after=seen[-1].id)
    assert [(event.request_id, event.milestone.value) for event in seen] == [
        (first, "accepted"), (second, "accepted"), (third, "accepted"), (first, "failed"),
    ]  # fmt: skip
    assert await world.db.rows("SELECT place FROM feed ORDER BY place") == [{"place": n} for n in (1, 2, 3, 4)]


async def test_a_publisher_that_hangs_keeps_no_other_waiting_and_hides_no_event(world: WebhookWorld) -> None:
    await world.db.accept()
    async with transaction(world.db.engine) as hanging:
        await FeedRepository(hanging).publish()
        await world.db.accept()
        assert await world.webhooks().publish() == 0
        assert await world.feed() == []
    assert await world.webhooks().publish() == 1
    assert len(await world.feed()) == 2


async def test_pages_of_the_feed_are_all_of_it(world: WebhookWorld) -> None:
    for _ in range(7):
        await world.db.accept()
    await world.webhooks().publish()
    whole, after, pages = await world.feed(), None, []
    while page := await world.feed(after, limit=3):
        pages.append(list(page))
        after = page[-1].id
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [event for page in pages for event in page] == whole


async def test_a_request_is_late_once_when_its_deadline_passes_and_never_when_it_is_done(world: WebhookWorld) -> None:
    done, late, early = await world.db.accept(), await world.db.accept(), await world.db.accept()
    await world.complete([done])
    await world.db.rows(
        "UPDATE requests SET received_at = received_at - CAST(:age AS interval) WHERE id <> :early",
        age=DEADLINE + timedelta(minutes=1),
        early=early,
    )
    for _ in range(2):
        await world.webhooks().look_for_late()
    assert await published(world, late) == ["accepted", "late"]
    assert await published(world, done) == ["accepted", "applied", "completed"]
    assert await published(world, early) == ["accepted"]


async def test_what_was_published_is_never_changed_or_removed(world: WebhookWorld) -> None:
    await world.db.accept()
    await world.webhooks().publish()
    for statement in ("UPDATE feed SET milestone = 'late'", "DELETE FROM feed", "TRUNCATE feed CASCADE"):
        with pytest.raises(DBAPIError, match="are never changed"):
            await world.db.rows(statement)
