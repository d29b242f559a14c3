"""A repairing service that a test can block."""

from pathlib import Path
from typing import Any

import pytest

from service.errors import LetheError
from service.settings import Settings
from service.unlearner.repairer import Repairer
from tests.support.service.db_harness import until
from tests.support.service.repair_world import query
from tests.support.service.running import Lethe, settings_of

#: Largest distance of `repaired` weights from an independent retraining.
TOLERANCE = 1e-6
UNFINISHED = "SELECT 1 FROM versions WHERE cause = 'repair' AND finished_at IS NULL"


@pytest.fixture
def repairing_settings(small_model: Path, tmp_path: Path, database_url: str, redis_url: str) -> Settings:
    return settings_of(small_model, tmp_path / "home", database_url, redis_url, repair="always")


@pytest.fixture
def deferring(repairing_settings: Settings) -> Settings:
    """Settings under which no batch is repaired before it is served."""
    return repairing_settings.model_copy(update={"repair_budget": 0.0})


class Gate:
    """Blocks idle-time work until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = False
        is_due = Repairer.is_due
        monkeypatch.setattr(Repairer, "is_due", lambda repairer: self.is_open and is_due(repairer))


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


async def model_of(lethe: Lethe) -> dict[str, Any]:
    model: dict[str, Any] = (await lethe.client.get("/model")).json()
    return model


async def repaired(lethe: Lethe, accepted: dict[str, Any], status: str = "converged") -> dict[str, Any]:
    """Wait until a request's repair has this status and nothing older is on the disk. Returns the request's state."""

    async def has_ended() -> bool:
        unfinished = await query(lethe.settings.database_url, UNFINISHED)
        return (await lethe.state(accepted))["repair"] == status and not unfinished

    await lethe.completed(accepted)
    await until(has_ended)
    return await lethe.state(accepted)


def assert_retrained(state: dict[str, Any], *, version: int) -> None:
    """Check that a request's record describes a converged repair, in figures and in words."""
    audit = state["audit"]
    assert (state["status"], state["guarantee"], state["repair"]) == ("completed", "retrained", "converged")
    assert audit["distance_bound_after_relative"] <= 1e-8 < audit["distance_bound_before_relative"]
    assert audit["distance_bound_after"] < audit["distance_bound_before"]
    assert (audit["repair_version"], audit["repair_iterations"] > 0) == (version, True)
    assert audit["repair_weight_change"] > 0
    assert audit["span_residual"] < 1e-8
    assert (
        "did the forgetting: it re-optimised the weights on the remaining graph and moved them by"
        in state["explanation"]
    )
    assert "not those of retraining" not in state["explanation"]


class Crash(LetheError):
    """The process ends here."""


def crash(*_: object, **__: object) -> None:
    raise Crash("A crash.", "Start again.")
