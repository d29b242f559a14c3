"""The purpose of the tests of published weights: each mistake that breaks the promise fails one of them."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

import service.unlearner.committed
import service.unlearner.resident
from projector.certified.mechanism import mechanism_for, shown
from projector.certified.publication import Publication
from service.domain.figures import EXACT
from service.settings import Settings
from tests.support.everyday import everyday
from tests.support.service import published as checks
from tests.support.service.db_harness import until
from tests.support.service.running import running

Patch = pytest.MonkeyPatch
Noticed = Callable[[Settings, Patch], Awaitable[None]]


def of_a_lethe(test: Callable[..., Awaitable[None]], *more: str) -> Noticed:
    """Wrap a test of a running service, given one of its settings."""

    async def run(settings: Settings, patch: Patch) -> None:
        async with running(settings) as lethe:
            await until(lethe.is_ready)
            await test(lethe, *([patch] if more else []))

    return run


async def restart(settings: Settings, patch: Patch) -> None:
    await checks.assert_a_restart_draws_nothing_anew(settings)


def drawn_again(patch: Patch) -> None:
    def again(publication: Publication, *weights: Any) -> Any:
        return shown(Publication.drawn(publication.promise, publication.mechanism), *weights)

    patch.setattr(service.unlearner.committed, "shown", again)


def drawn_once_for_all(patch: Patch) -> None:
    patch.setattr(Publication, "drawn", classmethod(lambda cls, promise, mechanism: cls(promise, mechanism, bytes(32))))


def no_cap(patch: Patch) -> None:
    def boundless(*of: Any) -> Any:
        return replace(mechanism_for(*of), cap=1e9)

    patch.setattr(service.unlearner.resident, "mechanism_for", boundless)


def no_salt(patch: Patch) -> None:
    patch.setattr(Publication, "commitment_salt", b"")


def one_figure_shown(patch: Patch) -> None:
    patch.setattr("service.domain.records.EXACT", EXACT - {"weight_change"})


def one_figure_logged(patch: Patch) -> None:
    patch.setattr("service.log.leaves.EXACT", EXACT - {"repair_weight_change"})


WALK = of_a_lethe(checks.assert_below_the_audit_nothing_is_computed_from_the_weights_as_they_are)
MUTANTS: dict[str, tuple[Callable[[Patch], None], Noticed]] = {
    "drawn again at a restart": (drawn_again, restart),
    "the same noise for all versions": (
        drawn_once_for_all,
        of_a_lethe(checks.assert_versions_have_draws_of_their_own_which_leave_with_them),
    ),
    "no cap": (no_cap, of_a_lethe(checks.assert_weights_that_are_not_near_enough_stay_queued, "patch")),
    "a digest without salt": (no_salt, WALK),
    "one figure shown": (one_figure_shown, WALK),
    "one figure logged": (one_figure_logged, WALK),
}


@pytest.mark.parametrize("mutant", everyday(MUTANTS))
async def test_a_mistake_is_noticed(settings: Settings, monkeypatch: Patch, mutant: str) -> None:
    mistake, notices = MUTANTS[mutant]
    mistake(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError)):
        await notices(settings, monkeypatch)
