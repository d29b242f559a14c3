"""Crashes at any point of a version with noise: seen noise is never drawn again, and publications are counted."""

import contextlib
from typing import Any

import pytest

from service import failure_points
from service.domain.states import Cause
from service.failure_points import FailurePoint
from service.settings import Settings
from tests.support.everyday import everyday
from tests.support.kills.faults import points_of
from tests.support.service.db_harness import until
from tests.support.service.repairs import crash, model_of
from tests.support.service.running import Lethe, running

CASES = {
    f"{point} of a {cause}": (cause, point)
    for cause in (Cause.CERTIFICATION, Cause.BATCH)
    for point in points_of(cause)
    # A failed computation is not a crash, and fails the request.
    if (cause, point) != (Cause.BATCH, FailurePoint.COMPUTED)
}
_EVERYDAY = f"{FailurePoint.COMMITTED} of a {Cause.BATCH}"


class Seen:
    """An observer's view of each version."""

    def __init__(self) -> None:
        self.by_version: dict[int, set[str]] = {}

    async def look(self, lethe: Lethe) -> None:
        with contextlib.suppress(KeyError):
            answer: dict[str, Any] = (await lethe.client.get("/predict/20")).json()
            self.by_version.setdefault(answer["model_version"], set()).add(str(answer["probabilities"]))


@pytest.mark.parametrize("case", everyday(CASES, _EVERYDAY))
async def test_what_was_seen_is_never_drawn_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    cause, wanted = CASES[case]
    seen, accepted = Seen(), None
    with monkeypatch.context() as patch:

        def reached(point: FailurePoint, of: Cause | None = None) -> None:
            if (point, of) == (wanted, cause):
                crash()

        patch.setattr(failure_points, "reached", reached)
        async with running(settings) as lethe:

            async def has_ended() -> bool:
                await seen.look(lethe)
                return bool(lethe.failures) or await lethe.is_ready()

            await until(has_ended)
            if not lethe.failures:
                accepted = await lethe.delete("12")
                await until(lethe.has_failed)
                await seen.look(lethe)
            assert lethe.failures
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        await lethe.completed(accepted or await lethe.delete("12"))
        await seen.look(lethe)
        await lethe.completed(await lethe.delete("57"))
        await seen.look(lethe)
        used = (await model_of(lethe))["noise"]["used"]
    assert all(len(draws) == 1 for draws in seen.by_version.values())
    # Version 1, before any deletion, does not count.
    assert used >= len(seen.by_version.keys() - {1}) - 1e-9
