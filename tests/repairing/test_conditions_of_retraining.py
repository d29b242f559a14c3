"""The conditions of `retrained`, and the side effects of a repair: in record, receipt and page."""

import html
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from model_store.build import build_model
from model_store.datasets.load import load_dataset
from projector.network.spec import ModelSpec, SolverKind
from tests.support.clients.signing_in import sign_in
from tests.support.service.db_harness import until
from tests.support.service.running import Lethe, running, settings_of

pytestmark = pytest.mark.ci

#: Stops far from the optimum, and learns sigmas.
SPEC = ModelSpec(diffusion=True, solver=SolverKind.SGD, epochs=5, learning_rate=0.1)
FROZEN = (
    "Retraining here keeps the frozen parts as they are: the sigmas of the diffusion, learned while the "
    "deleted data was still in the graph."
)
UNFINISHED = "because training had stopped early and no repair had reached the optimum yet."


@pytest.fixture
async def lethe(tmp_path: Path, database_url: str, redis_url: str) -> AsyncIterator[Lethe]:
    graph = load_dataset("synthetic:n=120,d=8,classes=3,seed=5", data_dirs=[])
    built = build_model(graph, SPEC, name="stopped", dataset="synthetic", split="full")
    built.write(tmp_path / "trained")
    settings = settings_of(tmp_path / "trained", tmp_path / "home", database_url, redis_url, repair="always")
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        yield lethe


async def test_the_first_repair_of_an_unfinished_model_is_not_credited_to_forgetting(lethe: Lethe) -> None:
    trained = (await lethe.client.get("/model")).json()["distance_bound_relative"]
    accepted = await lethe.delete("7")
    first = await lethe.completed(accepted)
    await assert_record_receipt_and_page_name_what_was_fixed_before(lethe, accepted)
    assert first["guarantee"] == "retrained"
    assert first["audit"]["repair_weight_change"] > 0.5
    assert first["audit"]["distance_bound_start_relative"] == trained > 0.5
    assert UNFINISHED in first["explanation"]
    assert "did the forgetting" not in first["explanation"]

    second = await lethe.completed(await lethe.delete("8"))
    assert second["audit"]["distance_bound_start_relative"] == first["audit"]["distance_bound_after_relative"] <= 1e-8
    assert UNFINISHED not in second["explanation"]
    assert "did the forgetting" in second["explanation"]


async def assert_record_receipt_and_page_name_what_was_fixed_before(lethe: Lethe, accepted: dict[str, Any]) -> None:
    assert FROZEN in (await lethe.state(accepted))["explanation"]
    receipt = await lethe.receipt(accepted)
    assert FROZEN in receipt["summary"]["what_was_done"]
    # It is in the log, and so in the signed data.
    [completed] = [entry["leaf"] for entry in receipt["entries"] if entry["leaf"]["type"] == "completed"]
    assert FROZEN in completed["request"]["explanation"]
    printed = await lethe.client.get(f"{accepted['links']['self']}/receipt", params={"format": "html"})
    assert FROZEN in plain(printed.text)
    await sign_in(lethe.client, "the-first-key")
    page = await lethe.client.get(f"/dashboard/requests/{accepted['id']}")
    assert FROZEN in plain(page.text)


def plain(page: str) -> str:
    return " ".join(html.unescape(page).split())
