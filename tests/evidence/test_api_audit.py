"""The audit over HTTP: who may read it, what it reports, and that it names nobody."""

import csv
import io
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from service.domain.scopes import Scope
from service.reports.search import EXPORT_PAGE
from tests.support.databases import Templates
from tests.support.evidence.audit_world import audit_database
from tests.support.service.api_harness import MODEL, Api, serving
from tests.support.service.bodies import refused

ROUTES = ("/audit/summary", "/audit/series", "/audit/export")


@pytest.fixture
async def api(templates: Templates, tmp_path: Path) -> AsyncIterator[Api]:
    """Requests made with a key that no one has."""
    with audit_database(templates, MODEL) as url:
        async with serving(url, tmp_path) as api:
            yield api


@pytest.fixture
async def auditor(api: Api) -> httpx2.AsyncClient:
    return await api.client(Scope.AUDIT_READ)


async def got(client: httpx2.AsyncClient, path: str, **parameters: Any) -> Any:
    response = await client.get(path, params=parameters)
    assert response.status_code == 200, response.text
    return response.json()


async def searched(client: httpx2.AsyncClient, **body: Any) -> Any:
    response = await client.post("/deletions/search", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_the_summary_shows_how_requests_ended(auditor: httpx2.AsyncClient) -> None:
    found = await got(auditor, "/audit/summary")
    assert found["model"] == MODEL
    assert found["requests"] == sum(found["by_status"].values()) == sum(found["by_kind"].values())
    assert sum(found["by_guarantee"].values()) == sum(found["by_repair"].values()) == found["by_status"]["completed"]
    # Failed requests are open until they are handled.
    assert found["by_status"]["queued"] == 200
    assert found["open"] == 200 + found["by_status"]["failed"]
    assert found["seconds_to_applied"]["p50"] < found["seconds_to_completed"]["p50"]
    windowed = await got(auditor, "/audit/summary", since="2026-11-13", until="2026-11-15")
    assert 0 < windowed["requests"] < found["requests"]
    assert (windowed["since"], windowed["until"]) == ("2026-11-13", "2026-11-15")
    assert windowed["open"] == found["open"]


async def test_the_series_has_a_point_for_every_day_or_hour(auditor: httpx2.AsyncClient) -> None:
    days = await got(auditor, "/audit/series", since="2026-11-12T07:00:00Z", until="2026-11-15T00:00:00+00:00")
    assert days["step"] == "day"
    assert [point["start"] for point in days["points"]] == [f"2026-11-{day}T00:00:00Z" for day in (12, 13, 14)]
    window = {"since": "2026-11-13T02:30:00+02:00", "until": "2026-11-13T03:00:00Z"}
    hours = await got(auditor, "/audit/series", step="hour", **window)
    assert [point["start"] for point in hours["points"]] == [f"2026-11-13T0{hour}:00:00Z" for hour in range(3)]
    latest = (await got(auditor, "/audit/series"))["points"]
    assert len(latest) == 31
    assert datetime.fromisoformat(latest[-1]["start"]).date() == datetime.now(UTC).date()


async def test_windows_out_of_form_are_refused(auditor: httpx2.AsyncClient) -> None:
    for route, bad in (
        ("summary", {"since": "2026-11-15", "until": "2026-11-15"}),
        ("summary", {"since": "2026-11-15T00:00:00Z"}),
        ("summary", {"since": "1763164800"}),
        ("summary", {"deadline_days": "0"}),
        ("summary", {"node": "12"}),
        ("series", {"step": "minute"}),
        ("series", {"since": "2026-11-15T00:00:00"}),
        ("series", {"since": "0001-01-01T00:00:00+14:00"}),
        ("series", {"since": "1763164800"}),
        ("series", {"since": "2026-11-15T00:00:00Z", "until": "2026-11-14T00:00:00Z"}),
        ("series", {"step": "hour", "since": "2026-01-01T00:00:00Z", "until": "2026-11-01T00:00:00Z"}),
        ("export", {"format": "xlsx"}),
        ("export", {"limit": "3"}),
        ("export", {"reference": "DSR-1"}),
        ("export", {"injected_norm_before_min": "-1"}),
        ("export", {"span_residual_max": "nan"}),
    ):
        refused(await auditor.get(f"/audit/{route}", params=bad), 422, "invalid-request")


@pytest.mark.ci
async def test_an_export_has_a_line_for_every_request(auditor: httpx2.AsyncClient) -> None:
    total = (await got(auditor, "/audit/summary"))["requests"]
    assert total > 2 * EXPORT_PAGE
    answer = await auditor.get("/audit/export")
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["content-disposition"] == 'attachment; filename="lethe-audit.ndjson"'
    documents = [json.loads(line) for line in answer.text.splitlines()]
    assert len({document["id"] for document in documents}) == len(documents) == total
    table = await auditor.get("/audit/export", params={"format": "csv"})
    assert table.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(table.text)))
    for document, row in zip(documents, rows, strict=True):
        assert row.keys() == document.keys()
        assert {name: "" if value is None else str(value) for name, value in document.items()} == row
    completed = next(document for document in documents if document["status"] == "completed")
    assert completed["reference"].startswith("DSR-")
    [found] = (await searched(auditor, reference=completed["reference"]))["deletions"]
    flat = found | found["audit"] | {"batch_id": found["audit"]["batch"]["id"]}
    assert {name: flat[name] for name in completed if name in flat} == {
        name: value for name, value in completed.items() if name in flat
    }


async def test_a_reference_that_a_spreadsheet_would_run_is_text(api: Api, auditor: httpx2.AsyncClient) -> None:
    writer = await api.client(Scope.DELETIONS_WRITE)
    body = {"kind": "node", "nodes": ["1"], "reference": '=HYPERLINK("http://a","b")'}
    assert (await writer.post("/deletions", json=body)).status_code == 202
    since = (datetime.now(UTC) - timedelta(minutes=5)).isoformat()
    table = (await auditor.get("/audit/export", params={"format": "csv", "since": since})).text
    [row] = csv.DictReader(io.StringIO(table))
    assert row["reference"] == '\'=HYPERLINK("http://a","b")'


async def test_searches_out_of_form_are_refused(auditor: httpx2.AsyncClient) -> None:
    bad: dict[str, Any]
    for bad in (
        {"nodes": []},
        {"nodes": ["1"], "cursor": "x"},
        {"status": "done"},
        {"since": 1763164800},
        {"since": "1763164800"},
        {"injected_norm_before_min": "0.5"},
        {"injected_norm_before_min": -1},
        {"limit": 0},
        {"limit": "5"},
        {"reference": ""},
        {"node": "12"},
    ):
        refused(await auditor.post("/deletions/search", json=bad), 422, "invalid-request")


async def test_a_search_by_node_keeps_what_the_filters_keep(api: Api, auditor: httpx2.AsyncClient) -> None:
    [completed] = (await searched(auditor, status="completed", limit=1))["deletions"]
    await api.forget(["1"], completed["id"])
    answer = await searched(auditor, nodes=["1"], status="completed")
    assert [(one["node"], one["deletion"]["id"]) for one in answer["found"]] == [("1", completed["id"])]
    assert (answer["deletions"], answer["next_cursor"]) == (None, None)
    assert (await searched(auditor, nodes=["1"], status="failed"))["not_found"] == ["1"]


async def test_who_may_not_audit_finds_no_completed_request_by_its_reference(api: Api) -> None:
    writer, auditor = await api.client(Scope.DELETIONS_WRITE, Scope.DELETIONS_READ), await api.client(Scope.AUDIT_READ)
    [earlier] = (await searched(auditor, status="completed", limit=1))["deletions"]
    await api.forget(["1"], earlier["id"])
    body = {"kind": "node", "nodes": ["1"], "reference": "CASE-1"}
    completed = (await writer.post("/deletions", json=body)).json()
    await api.complete_without_work(completed, earlier["id"])
    queued = (await writer.post("/deletions", json=body | {"nodes": ["2"], "reference": "CASE-2"})).json()
    for reference, seen in (("CASE-1", []), ("CASE-2", [queued["id"]])):
        found = (await searched(writer, reference=reference))["deletions"]
        assert [one["id"] for one in found] == seen
    assert [one["id"] for one in (await searched(auditor, reference="CASE-1"))["deletions"]] == [completed["id"]]
    assert (await searched(auditor, reference="case-1"))["deletions"] == []
    foreign = await api.client(Scope.DELETIONS_READ)
    assert (await searched(foreign, reference="CASE-2"))["deletions"] == []


async def test_no_answer_names_a_node(api: Api, auditor: httpx2.AsyncClient) -> None:
    """Answers of the audit about requests with known node ids contain none of them."""
    writer = await api.client(Scope.DELETIONS_WRITE, Scope.DELETIONS_READ)
    named = ["user/38", "ålesund 39"]
    [earlier] = (await searched(auditor, status="completed", limit=1))["deletions"]
    await api.forget(named, earlier["id"])
    again = (await writer.post("/deletions", json={"kind": "node", "nodes": named, "reference": "CASE-9"})).json()
    await api.complete_without_work(again, earlier["id"])
    answers = [
        await auditor.get(route) for route in (*ROUTES, "/audit/export?format=csv", "/deletions?status=completed")
    ]
    answers.append(await auditor.post("/deletions/search", json={"reference": "CASE-9"}))
    for answer in answers:
        assert answer.status_code == 200
        assert not any(name in answer.text for name in (*named, "\\u00e5lesund"))
    assert again["id"] in answers[2].text
    assert "CASE-9" in answers[2].text
    assert not any(name in api.lines.getvalue() for name in (*named, "CASE-9"))
