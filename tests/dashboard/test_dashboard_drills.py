"""The card of drills: its text in each state, and the rights to start one."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from projector.forgetting.canaries import Canaries
from service.domain.figures import RequestNorms
from service.domain.scopes import Scope
from service.predictions.reader import Reader
from service.requests.drill_runs import CohortSearch
from tests.support.clients.signing_in import SAME_ORIGIN, sign_in, token_in
from tests.support.service.api_harness import Api, serving

CANARIES = Canaries(cohorts=2, nodes=2, first_column=16, tag="0badcafe")
#: Headers that htmx sends with a form of the card.
HTMX = SAME_ORIGIN | {"HX-Request": "true", "HX-Target": "drill"}


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(database_url, tmp_path / "home", canaries=CANARIES) as running:
        yield running


async def visitor(api: Api, *scopes: Scope) -> httpx2.AsyncClient:
    """Return a browser signed in with a new key."""
    _, key = await api.key(Scope.AUDIT_READ, *scopes)
    client = await api.client_with(None)
    assert (await sign_in(client, key)).status_code == 303
    return client


def text_of(page: str) -> str:
    """Return the card's visible text."""
    card = page[page.index('aria-labelledby="drill-title"') :]
    return " ".join(re.sub(r"<[^>]+>", " ", card[card.index(">") + 1 : card.index("</section>")]).split())


async def card(client: httpx2.AsyncClient) -> str:
    answer = await client.get("/dashboard")
    assert answer.status_code == 200
    return text_of(answer.text)


async def run(client: httpx2.AsyncClient, headers: dict[str, str] = HTMX) -> httpx2.Response:
    fields = {"form_token": token_in((await client.get("/dashboard")).text)}
    return await client.post("/dashboard/drills", data=fields, headers=headers)


async def complete(api: Api, cohort: int, after: float) -> None:
    async with api.engine.connect() as connection:
        rows = await connection.exec_driver_sql(f"SELECT request_id FROM drills WHERE cohort = {cohort}")
        request_id = rows.scalar_one()
    await api.forget(CANARIES.cohort_ids(cohort), request_id)
    await api.complete(request_id, RequestNorms(2, 0.25, 0.0, 4.125, after))


async def test_the_card_follows_a_drill_from_none_to_passed_and_failed(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client = await visitor(api, Scope.DELETIONS_WRITE)
    page = (await client.get("/dashboard")).text
    text = text_of(page)
    assert "No drill has run yet." in text
    assert "2 of 2 drills are left" in text
    assert "Run a drill" in text

    # When idle it answers "not changed"; alone it is not a page.
    [shown] = re.findall(r'id="drill"[^>]*data-shown="(\w+)"', page)
    asked = {"HX-Request": "true", "HX-Target": "drill", "lethe-shown": shown}
    assert (await client.get("/dashboard/drills", headers=asked)).status_code == 204
    assert (await client.get("/dashboard/drills")).headers["location"] == "/dashboard"

    begun = await run(client)
    assert begun.status_code == 200
    assert "Under way" in (await client.get("/dashboard/drills", headers=asked)).text
    assert "every 1.0s" in begun.text
    assert "Under way" in text_of(begun.text)
    assert "1 of 2 drills is left" in text_of(begun.text)
    assert 'id="run-drill" class="plain" aria-disabled="true"' in begun.text
    await complete(api, 1, after=0.0)
    text = await card(client)
    assert "Passed 4.125 → 0 The weight on the test column fell from 4.125 to 0." in text
    assert "Cohort 1, started just now" in text
    # While the model loads, past drills are shown.
    loading = Reader(tmp_path)
    with monkeypatch.context() as patched:
        search = CohortSearch(lambda: CANARIES, loading.live, api.services.deletions.tombstones)
        patched.setattr(api.services.drills, "cohorts", search)
        text = await card(client)
    assert "Passed 4.125 → 0" in text
    assert "its canaries are not known yet" in text

    assert (await run(client)).status_code == 200
    await complete(api, 2, after=0.5)
    text = await card(client)
    assert "Failed 4.125 → 0.5" in text
    assert "0 of 2 drills are left: train the model again" in text
    assert "Run a drill" not in text
    assert "Earlier drills" in text


async def test_a_failed_drill_is_shown_until_another_ends_or_another_model_is_served(api: Api) -> None:
    client = await visitor(api, Scope.DELETIONS_WRITE)
    failed = "The last drill failed: the model may not forget what is deleted."
    assert failed not in (await client.get("/dashboard")).text
    await run(client)
    await complete(api, 1, after=0.5)
    assert failed in (await client.get("/dashboard")).text
    await run(client)
    assert failed in (await client.get("/dashboard")).text
    _, key = await api.key(Scope.AUDIT_READ, Scope.DELETIONS_WRITE)
    api_client = await api.client_with(key)
    [newest, _] = (await api_client.get("/drills")).json()["drills"]
    assert (await api_client.delete(f"/deletions/{newest['request_id']}")).status_code == 200
    page = (await client.get("/dashboard")).text
    assert "Last drill Cancelled" in text_of(page)
    assert failed in page
    await api.replace_model()
    page = (await client.get("/dashboard")).text
    assert failed not in page
    assert "none on this model" in page


async def test_only_a_form_of_this_session_with_a_key_that_may_delete_starts_a_drill(api: Api) -> None:
    auditor = await visitor(api)
    assert "A key with the scope deletions:write can run one here." in await card(auditor)
    refused = await run(auditor)
    assert refused.status_code == 200
    assert "This needs the scope deletions:write." in text_of(refused.text)
    assert (await run(auditor, SAME_ORIGIN)).status_code == 403
    client = await visitor(api, Scope.DELETIONS_WRITE)
    fields = {"form_token": token_in((await auditor.get("/dashboard")).text)}
    assert (await client.post("/dashboard/drills", data=fields, headers=SAME_ORIGIN)).status_code == 403
    foreign = await client.post("/dashboard/drills", data=fields, headers=HTMX | {"Sec-Fetch-Site": "cross-site"})
    assert "sent by another site" in text_of(foreign.text)
    nobody = await api.client_with(None)
    assert (await nobody.post("/dashboard/drills", headers=SAME_ORIGIN)).status_code == 303
    assert await api.count("drills") == 0


async def test_without_a_script_the_form_works_and_a_refusal_is_a_page(api: Api) -> None:
    client = await visitor(api, Scope.DELETIONS_WRITE)
    begun = await run(client, SAME_ORIGIN)
    assert (begun.status_code, begun.headers["location"]) == (303, "/dashboard")
    refused = await run(client, SAME_ORIGIN)
    assert refused.status_code == 409
    assert "A drill is under way" in refused.text
    assert "A drill of this model is already running" in text_of((await run(client)).text)
    assert await api.count("drills") == 1
