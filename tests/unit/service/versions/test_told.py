"""What was promised to those who are deleted stays in force, whatever is promised later."""

from types import SimpleNamespace
from typing import Any

import pytest

from projector.certified.mechanism import calibrate
from projector.certified.publication import Promise, Publication
from service.unlearning.placement import NotPublishable
from service.versions.told import Told


def publication(epsilon: float, planned: int = 10) -> Publication:
    promise = Promise(epsilon, 1e-4, planned)
    return Publication.drawn(promise, calibrate(promise, 200.0, 1_000, 1e-8))


async def loaded(*versions: tuple[Publication | None, bool]) -> Told:
    """Of versions 1, 2, …: how each was published, and whether somebody was deleted."""

    def row(number: int, made: Publication | None, deletes: bool) -> SimpleNamespace:
        promise, mu = (made.promise, made.mechanism.mu) if made else (Promise(None, None, None), None)  # type: ignore[arg-type]
        return SimpleNamespace(
            number=number,
            publication_mu=mu,
            publication_epsilon=promise.epsilon,
            publication_delta=promise.delta,
            publications_planned=promise.publications,
            deletes=deletes,
        )

    class Database:
        async def execute(self, query: object) -> list[SimpleNamespace]:
            return [row(number, *each) for number, each in enumerate(versions, start=1)]

    told, database = Told(), Database()
    await told.load(database, "cora")  # type: ignore[arg-type]
    return told


async def test_a_larger_epsilon_does_not_undo_what_was_promised() -> None:
    strict, weak = publication(0.1), publication(10.0)
    told = await loaded(*[(strict, True)] * 10)
    for deletes in (True, False):
        with pytest.raises(NotPublishable, match="the deletions of version 1 than was promised"):
            told.count(11, weak, deletes=deletes)
    assert told.standing(weak).share == pytest.approx(1)


async def test_each_stands_at_what_was_promised_to_them() -> None:
    strict, weak = publication(0.1), publication(10.0)
    told = await loaded((weak, True), (weak, True), (strict, True))
    # Two tenths of the weaker promise and a little; of the stricter a tenth.
    assert told.standing(strict).share == pytest.approx(0.2, rel=0.01)
    assert told.count(4, strict, deletes=False).publications == 4
    more = publication(0.1, planned=40)
    for number in range(5, 8):
        told.count(number, more, deletes=True)
    assert told.standing(more).share == pytest.approx(0.2 + 3 / 40, rel=0.05)


async def test_a_version_without_noise_ends_what_was_promised_before() -> None:
    strict = publication(0.1)
    full: list[tuple[Any, bool]] = [(strict, True)] * 10
    assert (await loaded(*full, (None, False))).count(12, strict, deletes=True).publications == 1


async def test_versions_that_a_restored_database_does_not_know_were_promised_what_was_then() -> None:
    strict = publication(0.1)
    told = await loaded((strict, False))
    assert told.count(5, strict, deletes=False).publications == 4
