"""Access to the dashboard, and what its answers reveal."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from service.domain.scopes import Scope
from service.web.dashboard.pages import CONTENT_SECURITY_POLICY
from tests.support.clients.signing_in import SAME_ORIGIN, sign_in, token_in
from tests.support.service.api_harness import Api, serving
from tests.support.service.bodies import refused
from tests.support.service.limits import FAILURES

PAGES = ("", "/requests", "/find", "/log", "/model", "/requests/5e1c0a66-1111-4222-8333-444455556666/proof")


@pytest.mark.parametrize("page", PAGES)
async def test_nothing_is_shown_to_whoever_is_not_signed_in(api: Api, page: str) -> None:
    _, key = await api.key(*Scope)
    for client in (await api.client_with(None), await api.client_with(key)):
        answer = await client.get(f"/dashboard{page}")
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/dashboard/login")


async def test_a_key_with_audit_read_opens_it_and_others_do_not(api: Api) -> None:
    client = await api.client_with(None)
    assert (await sign_in(client, "lethe_00000000_wrong")).status_code == 401
    _, writer = await api.key(Scope.DELETIONS_WRITE, Scope.DELETIONS_READ, Scope.PREDICTIONS_READ)
    too_little = await sign_in(client, writer)
    assert too_little.status_code == 403
    assert "audit:read" in too_little.text
    assert "lethe_session" not in client.cookies
    _, auditor = await api.key(Scope.AUDIT_READ)
    answer = await sign_in(client, auditor)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard")
    for page in ("", "/requests", "/find", "/log"):
        shown = await client.get(f"/dashboard{page}")
        assert shown.status_code == 200
        assert auditor not in shown.text


async def test_the_session_is_a_cookie_that_no_script_and_no_other_site_gets(api: Api) -> None:
    _, key = await api.key(Scope.AUDIT_READ)
    client = await api.client_with(None, **{"X-Forwarded-Proto": "https"})
    client.base_url = httpx2.URL("https://lethe")
    cookies = (await sign_in(client, key)).headers.get_list("set-cookie")
    (session,) = [cookie.lower() for cookie in cookies if cookie.startswith("lethe_session")]
    for attribute in ("httponly", "samesite=strict", "path=/dashboard", "secure"):
        assert attribute in session
    assert key not in session


async def test_a_session_ends_with_signing_out_and_cannot_be_taken_up_again(api: Api) -> None:
    _, key = await api.key(Scope.AUDIT_READ)
    client = await api.client_with(None)
    await sign_in(client, key)
    kept = client.cookies["lethe_session"]
    form_token = token_in((await client.get("/dashboard")).text)
    left = await client.post("/dashboard/logout", data={"form_token": form_token}, headers=SAME_ORIGIN)
    assert left.headers["location"] == "/dashboard/login"
    assert "lethe_session" not in client.cookies
    client.cookies.set("lethe_session", kept, domain="lethe", path="/dashboard")
    assert (await client.get("/dashboard")).status_code == 303


@pytest.mark.parametrize("path", ["/find", "/drills", "/logout", "/login"])
async def test_nothing_is_read_of_a_form_before_it_is_known_whose_it_is(api: Api, path: str) -> None:
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        read += 1
        yield b"a=" + b"b" * 1_000_000

    client = await api.client_with(None)
    client.cookies.set("lethe_session", "x" * 43, domain="localhost", path="/dashboard")
    headers = SAME_ORIGIN | {"Content-Type": "application/x-www-form-urlencoded"}
    answer = await client.post(f"/dashboard{path}", content=body(), headers=headers)
    assert answer.status_code == (403 if path == "/login" else 303)
    assert read == 0


async def test_forms_of_other_sites_are_refused(api: Api) -> None:
    _, key = await api.key(Scope.AUDIT_READ)
    client = await api.client_with(None)
    form_token = token_in((await client.get("/dashboard/login")).text)
    fields = {"form_token": form_token, "key": key}
    foreign: list[dict[str, str]] = [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}]
    foreign += [{"Origin": "https://elsewhere.example"}, {"Origin": "null"}, {}]
    for headers in foreign:
        assert (await client.post("/dashboard/login", data=fields, headers=headers)).status_code == 403
    for token in ("", form_token[:-1], "é"):
        wrong = {**fields, "form_token": token}
        assert (await client.post("/dashboard/login", data=wrong, headers=SAME_ORIGIN)).status_code == 403
    assert (
        await client.post("/dashboard/login", data=fields, headers={"Origin": "http://localhost"})
    ).status_code == 303
    for path, data in (("find", {"by": "node", "text": "1"}), ("logout", {})):
        stolen = {**data, "form_token": form_token}
        assert (await client.post(f"/dashboard/{path}", data=stolen, headers=SAME_ORIGIN)).status_code == 403
    # Browsers leave strict cookies out of other sites' forms, but would obey an answer that deletes them.
    foreign_form = await (await api.client_with(None)).post("/dashboard/logout", headers=foreign[0])
    assert "set-cookie" not in foreign_form.headers
    assert (await client.get("/dashboard")).status_code == 200


@pytest.mark.ci
async def test_guessing_keys_is_limited_by_the_rule_of_the_interface_and_keeps_nobody_out(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    async with serving(database_url, tmp_path, redis_url=redis_url) as api:
        _, key = await api.key(Scope.AUDIT_READ)
        behind_one_address = await api.client_with("lethe_00000000_wrong", ("192.0.2.7", 4711))
        for _ in range(FAILURES):
            refused(await behind_one_address.get("/model"), 401, "unauthenticated")
        wrong = await sign_in(behind_one_address, "lethe_00000000_wrong")
        assert wrong.status_code == 429
        assert 0 < int(wrong.headers["retry-after"]) <= 60
        # This key has not been presented here before.
        assert (await sign_in(behind_one_address, key)).status_code == 303


@pytest.mark.parametrize(
    "after",
    ["https://elsewhere.example/", "//elsewhere.example", "/dashboard\\@elsewhere", "/docs", "/dashboard/../docs"],
)
async def test_signing_in_leads_to_pages_of_the_dashboard_alone(api: Api, after: str) -> None:
    _, key = await api.key(Scope.AUDIT_READ)
    client = await api.client_with(None)
    assert (await sign_in(client, key, after)).headers["location"] == "/dashboard"
    assert (await sign_in(client, key, "/dashboard/log")).headers["location"] == "/dashboard/log"


async def test_pages_run_and_load_only_what_comes_from_here(api: Api) -> None:
    _, key = await api.key(Scope.AUDIT_READ)
    client = await api.client_with(None)
    await sign_in(client, key)
    for name in ("/login", "/verify", "", "/requests", "/find", "/log"):
        path = f"/dashboard{name}"
        page = await client.get(path)
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
        assert "unsafe" not in policy
        assert page.headers["cache-control"] == "no-store"
        assert not re.search(r"""(?:src|href)=["'](?!/dashboard|#)""", page.text)
        assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", page.text)
        for asset in re.findall(r'(?:src|href)="(/dashboard/static/[^"]+)"', page.text):
            loaded = await client.get(asset)
            assert loaded.status_code == 200
            assert "immutable" in loaded.headers["cache-control"]


async def test_only_the_dashboards_own_files_are_served_and_logged_by_their_route(api: Api) -> None:
    client = await api.client_with(None)
    for name in ("page.js", "vendor/htmx/LICENSE", "vendor/uplot/LICENSE"):
        answer = await client.get(f"/dashboard/static/{name}")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
    for name in ("", "vendor", "absent.js", "..%2Fsessions.py", "%2Fetc%2Fpasswd", "vendor/..%2F..%2Fsessions.py"):
        assert (await client.get(f"/dashboard/static/{name}")).status_code == 404
    assert "route=/dashboard/static/{name}" in api.lines.getvalue()


async def test_no_node_is_in_a_page_a_url_or_a_log_line(api: Api) -> None:
    writer = await api.client(Scope.DELETIONS_WRITE)
    accepted = (await writer.post("/deletions", json={"kind": "node", "nodes": ["ålesund 39"]})).json()
    _, key = await api.key(Scope.AUDIT_READ)
    client = await api.client_with(None)
    await sign_in(client, key)
    for path in ("", "/requests", f"/requests/{accepted['id']}", f"/requests/{accepted['id']}/proof", "/model"):
        page = await client.get(f"/dashboard{path}")
        assert page.status_code == 200
        assert "lesund" not in page.text
    form_token = token_in((await client.get("/dashboard/find")).text)
    fields = {"form_token": form_token, "by": "node", "text": "ålesund 39"}
    found = await client.post("/dashboard/find", data=fields, headers=SAME_ORIGIN)
    assert found.status_code == 200
    # In the field where it was typed, and nowhere else.
    assert found.text.count("lesund") == found.text.count('value="ålesund 39"') == 1
    assert "lesund" not in api.lines.getvalue()
    assert accepted["id"] not in api.lines.getvalue()


async def test_an_unknown_address_gets_an_error_page_in_a_browser(api: Api) -> None:
    client = await api.client_with(None)
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path, status in (("/nothing", 404), ("/requests/x/y/ålesund", 404), ("/logout", 405)):
        page = await client.get(f"/dashboard{path}", headers=browser)
        assert page.status_code == status
        assert page.headers["content-type"].startswith("text/html")
        assert page.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert '<a href="/dashboard">Go to the overview</a>' in page.text
        assert "lesund" not in page.text + api.lines.getvalue()
        # A program gets the same answer as everywhere else.
        problem = await client.get(f"/dashboard{path}")
        assert problem.status_code == status
        assert problem.headers["content-type"] == "application/problem+json"
        assert page.headers.get("allow") == problem.headers.get("allow")
    elsewhere = await client.get("/dashboards", headers=browser)
    assert (elsewhere.status_code, elsewhere.headers["content-type"]) == (404, "application/problem+json")
