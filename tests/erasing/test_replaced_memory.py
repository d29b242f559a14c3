"""A replaced model leaves the memory, and nothing that continues holds it."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from projector.forgetting.factors import DelayedInverse
from service.unlearner.resident import Resident
from tests.support.mathematics.gram_forms import through_rows
from tests.support.service.db_harness import until
from tests.support.service.imports import asked, ended
from tests.support.service.running import running, settings_of

pytestmark = pytest.mark.ci


@pytest.fixture
def residents(monkeypatch: pytest.MonkeyPatch) -> "list[weakref.ref[Resident]]":
    """Return every model that was on the device, oldest first."""
    made: list[weakref.ref[Resident]] = []
    initialise = Resident.__init__

    def noted(resident: Resident, *arguments: Any, **named: Any) -> None:
        made.append(weakref.ref(resident))
        initialise(resident, *arguments, **named)

    monkeypatch.setattr(Resident, "__init__", noted)
    return made


def parts_of(resident: Resident | None) -> dict[str, "weakref.ref[Any]"]:
    """Return the large parts of a model, and the objects that hold them."""
    assert resident is not None
    parts = {
        "the model": resident,
        "features": resident.committed.features,
        "rows of features": resident.committed.features.rows,
        "weights": resident.committed.state.features.W,
        "Gram matrix": resident.committed.state.features.gram.M,
        "graph": resident.committed.live_graph,
        "edges": resident.committed.live_graph.propagator.edges.adjacency,
    }
    return {name: weakref.ref(part) for name, part in parts.items()}


async def test_a_replaced_model_leaves_the_memory(
    small_model: Path,
    new_model: Path,
    tmp_path: Path,
    database_url: str,
    redis_url: str,
    residents: "list[weakref.ref[Resident]]",
) -> None:
    settings = settings_of(small_model, tmp_path / "home", database_url, redis_url, repair="always")
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        await lethe.completed(await lethe.delete("5"))
        replaced = parts_of(residents[0]())
        imported = await ended(settings, await asked(settings, new_model, exclude_deleted=True))
        assert imported.refusal is None
        # Everything for serving the new model exists, so the old one is not merely late.
        await lethe.completed(await lethe.delete("6"))
        gc.collect()
        assert [name for name, part in replaced.items() if part() is not None] == []
        assert residents[-1]() is not None


async def test_a_completed_deletion_is_in_no_stored_factor(
    small_model: Path, tmp_path: Path, database_url: str, redis_url: str, residents: "list[weakref.ref[Resident]]"
) -> None:
    settings = settings_of(small_model, tmp_path / "home", database_url, redis_url, repair="always")
    with through_rows():
        async with running(settings) as lethe:
            await until(lethe.is_ready)
            before = weakref.ref(pseudo_inverse(residents[0]()).stored)
            await lethe.completed(await lethe.delete("5"))
            gc.collect()
            assert not len(pseudo_inverse(residents[0]()).rows)
            assert before() is None


def pseudo_inverse(resident: Resident | None) -> DelayedInverse:
    """Return M+ of a model whose batches delay its update."""
    assert resident is not None
    M_pinv = resident.committed.state.features.gram.M_pinv
    assert isinstance(M_pinv, DelayedInverse)
    return M_pinv
