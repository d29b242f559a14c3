"""Tokens of an OpenID Connect issuer beside API keys, against an issuer that runs here."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from joserfc import jws

from service.access.oidc import issuer as issuers
from service.access.oidc.issuer import Issuer as Client
from service.access.oidc.tokens import SKEW_S, verify, verify_id_token
from service.domain.scopes import Scope
from service.errors import Unauthenticated, Unavailable
from tests.support.service.api_harness import Api, serving
from tests.support.service.bodies import node_body, refused
from tests.support.service.issuer import AUDIENCE, CLIENT, SECRET, Issuer, new_key

GRANTS = {
    "scope": {"lethe.delete": ["deletions:write", "deletions:read"], "lethe.predict": ["predictions:read"]},
    "groups": {"privacy-team": ["audit:read"]},
    "realm_access.roles": {"deleter": ["deletions:write"]},
}


@pytest.fixture
async def api(database_url: str, tmp_path: Path, issuer: Issuer) -> AsyncIterator[Api]:
    async with serving(
        database_url,
        tmp_path,
        oidc_issuer=issuer.url,
        oidc_audience=AUDIENCE,
        oidc_grants=json.dumps(GRANTS),
        oidc_client_id=CLIENT,
        oidc_client_secret=SECRET,
        public_url="http://localhost",
    ) as running:
        yield running


async def test_a_token_acts_with_the_scopes_of_its_claims_and_is_recorded_without_its_subject(
    api: Api, issuer: Issuer
) -> None:
    deleting = await api.client_with(issuer.token(scope="openid lethe.delete", sub="ann@example.org"))
    accepted = await deleting.post("/deletions", json=node_body("1"))
    assert accepted.status_code == 202
    # The same subject with another token sees its own requests, with this token's scopes.
    again = await api.client_with(issuer.token(scope="lethe.delete", sub="ann@example.org"))
    assert (await again.get(f"/deletions/{accepted.json()['id']}")).status_code == 200
    other = await api.client_with(issuer.token(scope="lethe.delete", sub="ben"))
    refused(await other.get(f"/deletions/{accepted.json()['id']}"), 404, "not-found")
    only = await api.client_with(issuer.token(scope="lethe.predict", sub="ann@example.org"))
    assert (await only.get("/predict/2")).status_code == 200
    document = refused(await only.post("/deletions", json=node_body("2")), 403, "missing-scope")
    assert document["detail"] == "This route requires the scope deletions:write, which the token lacks."
    nested = await api.client_with(issuer.token(realm_access={"roles": ["deleter", 7]}))
    assert (await nested.post("/deletions", json=node_body("3"))).status_code == 202
    nothing = await api.client_with(issuer.token(scope="openid", groups="privacy-teams"))
    refused(await nothing.get("/model"), 403, "missing-scope")
    async with api.engine.connect() as connection:
        dumped = (await connection.exec_driver_sql("SELECT string_agg(k::text, '') FROM api_keys k")).scalar_one()
        names = (await connection.exec_driver_sql("SELECT name FROM api_keys WHERE is_subject")).scalars().all()
    assert len(names) == 3
    assert all(name.startswith("oidc ") for name in names)
    assert "ann" not in dumped + api.lines.getvalue()
    assert "eyJ" not in api.lines.getvalue()


async def test_a_revoked_subject_stays_revoked_and_the_database_limits_what_is_granted(
    api: Api, issuer: Issuer
) -> None:
    client = await api.client_with(issuer.token(scope="lethe.predict"))
    assert (await client.get("/model")).status_code == 200
    async with api.engine.begin() as connection:
        await connection.exec_driver_sql("UPDATE api_keys SET revoked_at = now() WHERE is_subject")
    await api.services.keys.refresh()
    document = refused(await client.get("/model"), 401, "unauthenticated")
    assert document["detail"] == "The subject of this token was revoked here."
    async with api.engine.begin() as connection:
        await connection.exec_driver_sql("UPDATE service_settings SET oidc_scopes = '{audit:read}'")
    unprepared = await api.client_with(issuer.token(scope="lethe.predict", sub="another"))
    assert "role `prepare`" in refused(await unprepared.get("/model"), 503, "unavailable")["remedy"]


async def test_keys_that_the_issuer_rotates_are_fetched_at_most_every_ten_seconds(issuer: Issuer) -> None:
    now = 0.0
    client = Client(issuer.url, clock=lambda: now)
    old = issuer.token()
    assert (await verify(old, client, AUDIENCE)).subject == "app-1"
    issuer.rotate()
    for _ in range(3):
        with pytest.raises(Unauthenticated, match="does not publish"):
            await verify(issuer.token(), client, AUDIENCE)
    assert issuer.key_fetches == 1
    now += issuers.REFETCH_S
    assert (await verify(issuer.token(), client, AUDIENCE)).subject == "app-1"
    # The withdrawn key ended with that fetch.
    with pytest.raises(Unauthenticated, match="does not publish"):
        await verify(old, client, AUDIENCE)
    assert issuer.key_fetches == 2


async def test_an_issuer_that_is_away_leaves_its_keys_for_a_day_and_api_keys_for_ever(api: Api, issuer: Issuer) -> None:
    issuer.is_down = True
    response = await (await api.client_with(issuer.token(scope="lethe.predict"))).get("/model")
    document = refused(response, 503, "unavailable")
    assert document["detail"] == "Tokens cannot be checked: the issuer answered 503."
    assert response.headers["retry-after"]
    assert (await (await api.client(Scope.PREDICTIONS_READ)).get("/model")).status_code == 200
    issuer.is_down, now = False, 0.0
    client = Client(issuer.url, clock=lambda: now)
    token = issuer.token(exp=int(time.time()) + 2 * 86_400)
    await verify(token, client, AUDIENCE)
    issuer.is_down = True
    for later in (1_000.0, 86_399.0):
        now = later
        await verify(token, client, AUDIENCE)
        with pytest.raises(Unavailable):
            await verify(issuer.token(new_key()), client, AUDIENCE)
    now = 86_411.0
    with pytest.raises(Unavailable):
        await verify(token, client, AUDIENCE)
    issuer.is_down, now = False, 86_422.0
    await verify(token, client, AUDIENCE)


async def test_while_one_caller_waits_for_the_issuer_the_others_use_the_known_keys(issuer: Issuer) -> None:
    now = 0.0
    client = Client(issuer.url, clock=lambda: now)
    await verify(issuer.token(), client, AUDIENCE)
    now = 1_000.0
    issuer.keys_asked.clear()
    issuer.keys_answered.clear()
    waiting = asyncio.create_task(verify(issuer.token(), client, AUDIENCE))
    await issuer.keys_asked.wait()
    assert (await asyncio.wait_for(verify(issuer.token(), client, AUDIENCE), 5)).subject == "app-1"
    assert not waiting.done()
    issuer.keys_answered.set()
    await waiting


async def test_an_issuer_that_is_away_is_asked_at_most_every_ten_seconds(issuer: Issuer) -> None:
    now, issuer.is_down = 0.0, True
    client = Client(issuer.url, clock=lambda: now)
    for _ in range(3):
        with pytest.raises(Unavailable, match="answered 503"):
            await client.endpoints()
        with pytest.raises(Unavailable, match="answered 503"):
            await verify(issuer.token(), client, AUDIENCE)
    assert issuer.asked == 1
    now, issuer.is_down = issuers.REFETCH_S, False
    assert (await client.endpoints()).token == f"{issuer.url}/token"


@pytest.mark.parametrize("answer", ["keys", "token_endpoint_auth_methods_supported"])
async def test_a_strange_answer_of_the_issuer_is_an_outage(
    issuer: Issuer, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = issuer._said
    monkeypatch.setattr(issuer, "_said", lambda document: said(document | {answer: 5}))
    with pytest.raises(Unavailable, match="publishes no"):
        await verify(issuer.token(), Client(issuer.url), AUDIENCE)


async def test_a_deeply_nested_token_is_refused_as_any_other(api: Api, issuer: Issuer) -> None:
    nested = b"[" * 3_000
    header = base64.urlsafe_b64encode(b'{"alg":"RS256","x":' + nested).decode().rstrip("=")
    client = await api.client_with(f"{header}.e30.AA")
    refused(await client.get("/model"), 401, "unauthenticated")
    payload = jws.serialize_compact({"alg": "RS256", "kid": issuer.signing.kid}, nested, issuer.signing)
    with pytest.raises(Unauthenticated):
        await verify(payload, Client(issuer.url), AUDIENCE)


@pytest.mark.parametrize("kind", ["at+jwt", "application/at+JWT", "JWT", None])
async def test_an_access_token_may_say_that_it_is_one(issuer: Issuer, kind: str | None) -> None:
    client = Client(issuer.url)
    assert (await verify(issuer.token(kind=kind, typ="Bearer"), client, AUDIENCE)).subject == "app-1"
    marks: list[dict[str, Any]] = [{"at_hash": "x"}, {"c_hash": "x"}, {"typ": "ID"}, {"token_use": "id"}]
    for mark in marks:
        with pytest.raises(Unauthenticated, match="is an ID token"):
            await verify(issuer.token(kind=kind, **mark), client, AUDIENCE)


@pytest.mark.parametrize("kind", ["logout+jwt", "dpop+jwt", "application/jwt+x"])
async def test_a_token_of_another_type_is_refused(issuer: Issuer, kind: str) -> None:
    with pytest.raises(Unauthenticated, match="which is for another use"):
        await verify(issuer.token(kind=kind), Client(issuer.url), AUDIENCE)
    # Nor does an access token sign anybody in.
    with pytest.raises(Unauthenticated, match="which is for another use"):
        await verify_id_token(issuer.token(aud=CLIENT, nonce="n"), Client(issuer.url), CLIENT, "n")


async def test_endpoints_are_read_again_with_the_keys(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    client = Client(issuer.url, clock=lambda: now)
    await client.endpoints()
    said, moved = issuer._said, f"{issuer.url}/moved"
    monkeypatch.setattr(issuer, "_said", lambda document: said(document | {"token_endpoint": moved}))
    assert (await client.endpoints()).token == f"{issuer.url}/token"
    now = issuers.FRESH_S
    assert (await client.endpoints()).token == moved
    issuer.is_down, now = True, 2 * issuers.FRESH_S
    assert (await client.endpoints()).token == moved


async def test_clocks_may_differ_by_a_minute(issuer: Issuer) -> None:
    client, now = Client(issuer.url), int(time.time())
    accepted: list[dict[str, Any]] = [{"exp": now - SKEW_S + 5}, {"nbf": now + SKEW_S - 5}, {"iat": now + SKEW_S - 5}]
    for claims in accepted:
        await verify(issuer.token(**claims), client, AUDIENCE)
    late: list[dict[str, Any]] = [{"exp": now - SKEW_S - 5}, {"nbf": now + SKEW_S + 5}, {"iat": now + SKEW_S + 5}]
    for claims in late:
        with pytest.raises(Unauthenticated):
            await verify(issuer.token(**claims), client, AUDIENCE)
