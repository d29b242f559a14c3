"""Drills over the API: the next cohort, the limit on concurrent drills, and the reported result."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from sqlalchemy.exc import DBAPIError

from projector.forgetting.canaries import Canaries
from service.access.api_keys import ApiKeyRepository
from service.db.engine import create_engine
from service.db.roles import API_ROLE
from service.db.transactions import transaction
from service.domain.drills import MOST_LEFT, Drill
from service.domain.figures import RequestNorms
from service.domain.kinds import RequestKind
from service.domain.scopes import Scope
from service.domain.states import RequestStatus
from service.log.leaves import AlreadyDeleted
from service.requests.drill_rows import DrillOpen, DrillRepository
from service.requests.drill_runs import drill_answer
from service.requests.moves import RequestMoves
from tests.support.service.api_harness import Api, serving
from tests.support.service.db_harness import NORMS

CANARIES = Canaries(cohorts=6, nodes=2, first_column=16, tag="0badcafe")


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(database_url, tmp_path / "home", canaries=CANARIES) as running:
        yield running


@pytest.fixture
async def writer(api: Api) -> httpx2.AsyncClient:
    return await api.client(Scope.DELETIONS_WRITE, Scope.DELETIONS_READ)


def norms(before: float | None, after: float | None) -> RequestNorms:
    return RequestNorms(CANARIES.nodes, 0.25, 0.0, before, after)


async def drilled(api: Api, client: httpx2.AsyncClient, measured: RequestNorms | None = None) -> dict[str, Any]:
    """Return a completed drill."""
    asked = await client.post("/drills")
    assert asked.status_code == 202, asked.text
    drill: dict[str, Any] = asked.json()
    await api.forget(CANARIES.cohort_ids(drill["cohort"]), drill["request_id"])
    await api.complete(drill["request_id"], measured or norms(4.0, 0.0))
    return drill


async def listed(client: httpx2.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/drills")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_drill_is_a_deletion_of_the_next_cohort(api: Api, writer: httpx2.AsyncClient) -> None:
    asked = await writer.post("/drills")
    assert asked.status_code == 202
    drill = asked.json()
    assert (drill["cohort"], drill["status"], drill["passed"]) == (1, "queued", None)
    assert asked.headers["location"] == drill["links"]["self"] == f"/deletions/{drill['request_id']}"
    assert set(drill["salts"]["nodes"]) == set(CANARIES.cohort_ids(1))
    assert drill["cohorts"]["remaining"] == (await listed(writer))["cohorts"]["remaining"] == 5
    request = (await writer.get(asked.headers["location"])).json()
    assert (request["kind"], request["count"], request["reference"]) == ("node", 2, "drill 1")
    await api.forget(CANARIES.cohort_ids(1), drill["request_id"])
    await api.complete(drill["request_id"], norms(4.125, 0.0))

    found = await listed(writer)

    assert found["model"] == "tiny"
    assert found["cohorts"] == {"total": 6, "nodes": 2, "remaining": 5, "partly_deleted": []}
    [shown] = found["drills"]
    assert (shown["status"], shown["passed"]) == ("completed", True)
    assert (shown["channel_norm_before"], shown["channel_norm_after"]) == (4.125, 0.0)
    assert shown["finding"] == "The weight on the test column fell from 4.125 to 0."
    assert "lethe-canary" not in str(found)
    assert "lethe-canary" not in api.lines.getvalue()
    # Whoever chose a cohort before that drill must choose again.
    async with transaction(api.engine) as connection:
        [key] = await ApiKeyRepository(connection).list()
    with pytest.raises(DrillOpen):
        await api.services.drills.start(key, newest=None)
    assert await api.count("requests") == 1


async def test_of_drills_asked_for_at_once_one_deletes_one_cohort(api: Api, database_url: str) -> None:
    async with serving(database_url, api.services.settings.home.with_name("second"), canaries=CANARIES) as second:
        clients = [await each.client(Scope.DELETIONS_WRITE) for each in (api, api, api)]
        # A separate process with its own keys, sharing only the database.
        clients += [await second.client(Scope.DELETIONS_WRITE) for _ in range(3)]
        answers = await asyncio.gather(*(client.post("/drills") for client in clients))
    assert sorted(answer.status_code for answer in answers) == [202, *[409] * 5]
    assert {answer.json().get("type") for answer in answers} == {None, "urn:lethe:problem:drill-open"}
    assert await api.count("drills") == await api.count("requests") == 1


async def test_a_repeated_key_is_answered_with_the_first_drill(api: Api, writer: httpx2.AsyncClient) -> None:
    headers = {"Idempotency-Key": "drill-of-monday"}
    answers = await asyncio.gather(*(writer.post("/drills", headers=headers) for _ in range(3)))
    assert [answer.status_code for answer in answers] == [202] * 3
    [first, *others] = [answer.json() for answer in answers]
    assert others == [first, first]
    await api.forget(CANARIES.cohort_ids(1), first["request_id"])
    await api.complete(first["request_id"], norms(4.0, 0.0))
    again = await writer.post("/drills", headers=headers)
    assert again.status_code == 202
    assert (again.json()["request_id"], again.json()["passed"]) == (first["request_id"], True)
    assert again.json()["salts"] is None
    body = {"kind": "node", "nodes": ["1"]}
    other = await writer.post("/deletions", json=body, headers=headers)
    assert (other.status_code, other.json()["type"]) == (409, "urn:lethe:problem:conflict")
    assert (await writer.post("/deletions", json=body, headers={"Idempotency-Key": "x"})).status_code == 202
    other = await writer.post("/drills", headers={"Idempotency-Key": "x"})
    assert (other.status_code, other.json()["type"]) == (409, "urn:lethe:problem:conflict")
    assert await api.count("drills") == 1


async def test_cohorts_that_others_deleted_in_part_are_skipped_and_named(api: Api, writer: httpx2.AsyncClient) -> None:
    (one, _), (_, other) = CANARIES.cohort_ids(1), CANARIES.cohort_ids(2)
    body = {"kind": "node", "nodes": [one]}
    request_id = (await writer.post("/deletions", json=body)).json()["id"]
    await api.forget([one], request_id)
    body = {"kind": "features", "nodes": [other]}
    request_id = (await writer.post("/deletions", json=body)).json()["id"]
    await api.forget([other], request_id, RequestKind.FEATURES)

    asked = (await writer.post("/drills")).json()

    assert asked["cohort"] == 3
    assert asked["cohorts"] == {"total": 6, "nodes": 2, "remaining": 3, "partly_deleted": [1, 2]}
    await api.forget(CANARIES.cohort_ids(3), asked["request_id"])
    await api.complete(asked["request_id"], norms(4.0, 0.0))
    for _ in range(3):
        await drilled(api, writer)
    refused = (await writer.post("/drills")).json()
    assert "No drill can use 1 to 2: other requests deleted some of their nodes." in refused["detail"]


async def test_a_drill_passes_when_the_column_had_weight_and_has_none_left(
    api: Api, writer: httpx2.AsyncClient
) -> None:
    cases: list[tuple[float | None, float | None, bool, str]] = [
        (4.0, 0.0, True, "fell from 4 to 0"),
        (4.0, 4.0 * MOST_LEFT, True, "fell from 4 to 4e-12"),
        (4.0, 4.1 * MOST_LEFT, False, "4.1e-12 of 4 is left"),
        (0.0, 0.0, False, "no weight to begin with"),
        (None, None, False, "could not be read"),
        (4.0, None, False, "could not be read"),
    ]
    for before, after, *_ in cases:
        await drilled(api, writer, norms(before, after))
    found = list(reversed((await listed(writer))["drills"]))
    assert [drill["passed"] for drill in found] == [passed for *_, passed, _ in cases]
    for drill, (*_, words) in zip(found, cases, strict=True):
        assert words in drill["finding"]
    assert await _view(api) == [
        (cohort, "completed", before, after, passed) for cohort, (before, after, passed, _) in enumerate(cases, 1)
    ]
    # One for each cohort, in order, and no more.
    refused = await writer.post("/drills")
    assert refused.status_code == 409
    assert refused.json()["type"] == "urn:lethe:problem:cohorts-used-up"
    assert "--canaries" in refused.json()["remedy"]
    assert [drill["cohort"] for drill in (await writer.get("/drills?limit=1")).json()["drills"]] == [6]


async def test_a_drill_of_a_model_that_an_import_has_replaced_says_so(api: Api, writer: httpx2.AsyncClient) -> None:
    await drilled(api, writer)
    waiting = (await writer.post("/drills")).json()
    await api.replace_model()
    # Applied to the new model, whenever it was requested.
    await api.complete(waiting["request_id"], norms(4.0, 0.0))
    second, first = (await listed(writer))["drills"]
    assert (second["model_replaced_at"], second["passed"]) == (None, True)
    assert "import" not in second["finding"]
    assert first["passed"] is True
    assert first["model_replaced_at"] > first["completed_at"]
    moment = first["model_replaced_at"][:16].replace("T", " ")
    assert first["finding"] == (
        "The weight on the test column fell from 4 to 0. This was measured on the model served before the "
        f"import of {moment} UTC and shows nothing about the one served now."
    )
    await api.replace_model()
    found = (await listed(writer))["drills"]
    assert found[1] == first, "the first import after it replaced its model"
    assert found[0]["model_replaced_at"] > first["model_replaced_at"]
    # A drill that changed no weights was requested while the earlier model was served.
    withdrawn = (await writer.post("/drills")).json()
    assert (await writer.delete(withdrawn["links"]["self"])).status_code == 200
    assert (await listed(writer))["drills"][0]["model_replaced_at"] is None
    await api.replace_model()
    shown = (await listed(writer))["drills"][0]
    assert shown["model_replaced_at"] is not None
    assert shown["finding"] == "The drill was cancelled before the unlearner took it up."
    async with transaction(api.engine) as connection:
        query = "SELECT request_id, model_replaced_at FROM audit_drills"
        rows = (await connection.exec_driver_sql(query)).mappings()
        viewed = {str(row["request_id"]): row["model_replaced_at"] for row in rows}
        drills = await DrillRepository(connection).list("tiny", limit=9)
        stored = {str(one.request_id): one.model_replaced_at for one in drills}
    assert viewed == stored
    assert None not in viewed.values()


async def test_a_drill_that_never_came_to_the_weights_did_not_pass(api: Api, writer: httpx2.AsyncClient) -> None:
    withdrawn = (await writer.post("/drills")).json()
    assert (await writer.delete(withdrawn["links"]["self"])).status_code == 200
    [shown] = (await listed(writer))["drills"]
    assert (shown["status"], shown["passed"]) == ("cancelled", None)
    assert "cancelled" in shown["finding"]
    # Its cohort is used again; this time another request deletes it while the drill waits.
    drill = (await writer.post("/drills")).json()
    assert drill["cohort"] == 1
    body = {"kind": "node", "nodes": list(CANARIES.cohort_ids(1))}
    other = (await writer.post("/deletions", json=body)).json()["id"]
    await api.complete(other)
    async with transaction(api.engine) as connection:
        await RequestMoves(connection).mark_completed_without_work(
            UUID(drill["request_id"]), AlreadyDeleted(RequestKind.NODE, (UUID(other),)), "Gone."
        )
    [shown, _] = (await listed(writer))["drills"]
    assert shown["passed"] is False
    assert await _view(api) == [(1, "cancelled", None, None, None), (1, "completed", None, None, False)]


async def _view(api: Api) -> list[Any]:
    async with transaction(api.engine) as connection:
        query = (
            "SELECT cohort, status, channel_norm_before, channel_norm_after, passed FROM audit_drills ORDER BY number"
        )
        return [tuple(row) for row in await connection.exec_driver_sql(query)]


async def test_drills_are_recorded_with_their_requests_and_never_changed(api: Api, writer: httpx2.AsyncClient) -> None:
    await drilled(api, writer, NORMS)
    for statement in ("UPDATE drills SET cohort = 2", "DELETE FROM drills", "TRUNCATE drills"):
        with pytest.raises(DBAPIError, match="drills are never changed"):
            async with transaction(api.engine) as connection:
                await connection.exec_driver_sql(statement)
    url = api.services.settings.database_url
    assert url is not None
    engine = create_engine(url, pool_size=1, role=API_ROLE)
    try:
        for statement in ("UPDATE drills SET cohort = 2", "DELETE FROM drills"):
            with pytest.raises(DBAPIError, match="permission denied"):
                async with transaction(engine) as connection:
                    await connection.exec_driver_sql(statement)
        async with transaction(engine) as connection:
            assert (await DrillRepository(connection).list("tiny", limit=5))[0].cohort == 1
            assert await DrillRepository(connection).list("another", limit=5) == []
    finally:
        await engine.dispose()


@pytest.mark.parametrize("status", RequestStatus)
def test_nothing_read_from_weights_with_noise_is_shown_in_any_state(status: RequestStatus) -> None:
    moment = datetime(2026, 11, 24, tzinfo=UTC)
    drill = Drill(
        request_id=uuid4(), model="small", cohort=1, requested_at=moment, status=status,
        channel_norm_before=4.125, channel_norm_after=0.5,
    )  # fmt: skip
    answer = drill_answer(drill, with_result=False).model_dump_json()
    assert "4.125" not in answer
    assert "0.5" not in answer
    assert status is not RequestStatus.COMPLETED or '"passed":null' in answer
