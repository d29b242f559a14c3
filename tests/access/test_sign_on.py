"""Sign-in to the dashboard at an OpenID Connect issuer, as a browser does it."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from service.domain.scopes import Scope
from service.web.services import openid_connect
from tests.support.clients.signing_in import SAME_ORIGIN, sign_in, token_in
from tests.support.service.api_harness import Api, serving
from tests.support.service.issuer import CLIENT, SECRET, Issuer

GRANTS = json.dumps({"groups": {"privacy-team": ["audit:read"], "everybody": ["predictions:read"]}})


@pytest.fixture
async def api(database_url: str, tmp_path: Path, issuer: Issuer) -> AsyncIterator[Api]:
    async with serving(
        database_url,
        tmp_path,
        oidc_issuer=issuer.url,
        oidc_grants=GRANTS,
        oidc_client_id=CLIENT,
        oidc_client_secret=SECRET,
        public_url="http://localhost",
    ) as running:
        yield running


@pytest.fixture
async def elsewhere() -> AsyncIterator[httpx2.AsyncClient]:
    """The browser at the issuer's site."""
    async with httpx2.AsyncClient() as client:
        yield client


async def begun(lethe: httpx2.AsyncClient, path: str) -> str:
    """Follow the link of the sign-in page to the issuer; returns its address."""
    page = await lethe.get("/dashboard/login", params={"next": path})
    link = re.search(r'<a class="button" href="([^"]+)"', page.text)
    assert link
    sent = await lethe.get(unescape(link[1]))
    assert sent.status_code == 303
    assert "Max-Age=900;" in sent.headers["set-cookie"]
    return sent.headers["location"]


async def returned(
    lethe: httpx2.AsyncClient, elsewhere: httpx2.AsyncClient, name: str, path: str = "/dashboard/log"
) -> str:
    """Sign in at the issuer as `name`; returns the address of Lethe to which it sends the browser back."""
    elsewhere.cookies.clear()
    there = await begun(lethe, path)
    assert 'name="name"' in (await elsewhere.get(there)).text
    back = await elsewhere.post(there, data={"name": name})
    return back.headers["location"]


async def test_a_user_signs_in_at_the_issuer_and_signs_out_there(
    api: Api, issuer: Issuer, elsewhere: httpx2.AsyncClient
) -> None:
    lethe = await api.client_with(None)
    there = await begun(lethe, "/dashboard/log")
    assert lethe.cookies["lethe_sign_on"].split(".")[0] not in there
    back = await returned(lethe, elsewhere, "auditor")
    arrived = await lethe.get(back)
    cookies = {cookie.partition("=")[0]: cookie.lower() for cookie in arrived.headers.get_list("set-cookie")}
    assert all("httponly" in cookie for cookie in cookies.values())
    assert "samesite=strict" in cookies["lethe_session"]
    # A page of this site leads on: a redirect from the issuer's site would not send a strict cookie.
    assert arrived.status_code == 200
    assert '<meta http-equiv="refresh" content="0; url=/dashboard/log">' in arrived.text
    log = await lethe.get("/dashboard/log")
    assert log.status_code == 200
    (name,) = re.findall(r'title="Your name in the log">(oidc [0-9a-f-]{13})<', log.text)
    # A code serves once.
    assert (await lethe.get(back)).status_code == 401
    assert list(issuer.sessions.values()) == ["auditor"]
    form = {"form_token": token_in((await lethe.get("/dashboard")).text)}
    out = await lethe.post("/dashboard/logout", data=form, headers=SAME_ORIGIN)
    (end,) = re.findall(r'content="0; url=([^"]+)"', out.text)
    assert urlsplit(unescape(end)).netloc == urlsplit(issuer.url).netloc
    assert (await elsewhere.get(unescape(end))).headers["location"] == "http://localhost/dashboard/login"
    assert issuer.sessions == {}
    assert (await lethe.get("/dashboard/log")).status_code == 303
    async with api.engine.connect() as connection:
        assert (await connection.exec_driver_sql("SELECT name FROM api_keys")).scalars().all() == [name]
    assert not re.search(r"eyJ|code=|u-1|s3cret", api.lines.getvalue())


async def test_a_sign_in_that_another_browser_began_is_refused(api: Api, elsewhere: httpx2.AsyncClient) -> None:
    attacker, victim = await api.client_with(None), await api.client_with(None)
    back = await returned(attacker, elsewhere, "auditor")
    assert (await victim.get(back)).status_code == 401
    await begun(victim, "/dashboard")
    assert (await victim.get(back)).status_code == 401
    # Nor with the state of its own sign-in: the code needs the verifier of the browser that began.
    state = parse_qs(urlsplit(await begun(victim, "/dashboard")).query)["state"][0]
    (code,) = parse_qs(urlsplit(await returned(attacker, elsewhere, "auditor")).query)["code"]
    swapped = await victim.get("/dashboard/sign-on/callback", params={"code": code, "state": state})
    assert (swapped.status_code, "lethe_session" in victim.cookies) == (401, False)
    mixed_up = await returned(victim, elsewhere, "auditor")
    assert (await victim.get(re.sub("iss=[^&]+", "iss=https://evil.example", mixed_up))).status_code == 401


async def test_a_session_has_the_scopes_of_its_token_and_needs_audit_read(
    api: Api, elsewhere: httpx2.AsyncClient
) -> None:
    lethe = await api.client_with(None)
    answer = await lethe.get(await returned(lethe, elsewhere, "reader"))
    assert answer.status_code == 403
    assert "audit:read" in answer.text
    assert "lethe_session" not in lethe.cookies


@pytest.mark.parametrize(
    "changed",
    [
        {"oidc_issuer": None},
        {"oidc_issuer": "https://other.example"},
        {"oidc_grants": json.dumps({"groups": {"privacy-team": ["predictions:read"], "others": ["audit:read"]}})},
    ],
)
async def test_a_session_has_no_more_than_what_the_settings_grant_now(
    api: Api, elsewhere: httpx2.AsyncClient, changed: dict[str, str | None]
) -> None:
    lethe, before = await api.client_with(None), api.services
    await lethe.get(await returned(lethe, elsewhere, "auditor"))
    assert (await lethe.get("/dashboard/log")).status_code == 200
    settings = before.settings.model_copy(update=changed)
    openid = openid_connect(settings, api.engine, before.keyring, before.keys)
    api.app.state.services = replace(before, openid=openid)
    assert (await lethe.get("/dashboard/log")).status_code == 303
    assert "lethe_session" not in lethe.cookies


async def test_an_id_token_too_long_to_keep_leaves_no_earlier_one(api: Api, elsewhere: httpx2.AsyncClient) -> None:
    lethe = await api.client_with(None)
    await lethe.get(await returned(lethe, elsewhere, "auditor"))
    assert "lethe_id_token" in lethe.cookies
    assert (await lethe.get(await returned(lethe, elsewhere, "member of many"))).status_code == 200
    assert "lethe_session" in lethe.cookies
    assert "lethe_id_token" not in lethe.cookies


async def test_an_issuer_that_is_away_leaves_sign_in_with_a_key(api: Api, issuer: Issuer) -> None:
    issuer.is_down = True
    lethe = await api.client_with(None)
    answer = await lethe.get("/dashboard/sign-on")
    assert answer.status_code == 503
    assert "use an API key" in answer.text
    _, key = await api.key(Scope.AUDIT_READ)
    assert (await sign_in(lethe, key)).status_code == 303


async def test_without_an_issuer_nothing_offers_it(database_url: str, tmp_path: Path) -> None:
    async with serving(database_url, tmp_path) as api:
        lethe = await api.client_with(None)
        assert "organisation" not in (await lethe.get("/dashboard/login")).text
        assert (await lethe.get("/dashboard/sign-on")).status_code == 404
        answer = await (await api.client_with("eyJhbGciOiJub25lIn0.e30.")).get("/model")
        assert answer.json()["detail"] == "The API key is unknown or revoked."
