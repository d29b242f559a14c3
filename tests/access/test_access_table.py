"""docs/access.md is true: every route by every credential, tried against the running application."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from joserfc.jwk import RSAKey

from docs import access_table
from docs.access_table import INVALID, RouteAccess, interface, local_routes, pages
from service.access.api_keys import ApiKeyRepository, new_api_key
from service.db.transactions import transaction
from service.domain.scopes import Scope
from tests.support.service.api_harness import Api, serving
from tests.support.service.bodies import refused
from tests.support.service.issuer import AUDIENCE, CLIENT, Issuer, new_key

#: What stands for the parameters of a path.
VALUES = {
    "node": "1",
    "node:path": "1",
    "model": "tiny",
    "request_id": str(uuid4()),
    "index": "0",
    "version": "1",
    "name:path": "x",
}


@pytest.fixture
async def api(database_url: str, tmp_path: Path, issuer: Issuer) -> AsyncIterator[Api]:
    grants = json.dumps({"scope": {scope.value: [scope.value] for scope in Scope}})
    async with serving(
        database_url, tmp_path, oidc_issuer=issuer.url, oidc_audience=AUDIENCE, oidc_grants=grants
    ) as running:
        yield running


def path_of(template: str) -> str:
    for name, value in VALUES.items():
        template = template.replace(f"{{{name}}}", value)
    assert "{" not in template
    return template


async def invalid(api: Api, issuer: Issuer) -> dict[str, str | None]:
    """Return a credential for each row of the table."""
    withdrawn = issuer.token()
    issuer.rotate()
    revoked, revoked_text = await api.key(*Scope)
    expired = new_api_key()
    async with transaction(api.engine) as connection:
        keys, digest = ApiKeyRepository(connection), api.services.keyring.api_key_hash(expired.text)
        await keys.revoke(revoked)
        ended = datetime.now(UTC) - timedelta(days=1)
        await keys.create(expired.id, "expired", list(Scope), digest, expires_at=ended)
    now, scope = int(datetime.now(UTC).timestamp()), " ".join(Scope)
    other = new_key()
    forged = RSAKey.import_key(other.as_pem(private=True), {"kid": issuer.signing.kid or ""})
    head, _, signature = issuer.token(scope="none").split(".")
    return {
        "none": None,
        "wrong key": "lethe_00000000_wrong",
        "expired key": expired.text,
        "revoked key": revoked_text,
        "expired token": issuer.token(scope=scope, exp=now - 120),
        "token not valid yet": issuer.token(scope=scope, nbf=now + 120),
        "token for another audience": issuer.token(scope=scope, aud=["other", f"{AUDIENCE}s"]),
        "token of another issuer": issuer.token(scope=scope, iss="https://other.example"),
        "token without a signature (`none`)": issuer.unsigned(scope=scope),
        "token signed with the public key as a secret (`HS256`)": issuer.signed_with_public_key(scope=scope),
        "token signed by an unknown key": issuer.token(forged, scope=scope),
        "token signed by a key that the issuer has withdrawn": withdrawn,
        "changed token": ".".join((head, issuer.token(scope=scope).split(".")[1], signature)),
        "ID token of the dashboard": issuer.token(scope=scope, aud=CLIENT, nonce="x"),
    }


def test_the_table_is_that_of_the_routes() -> None:
    assert access_table.page() == access_table.PAGE.read_text(), "run `python -m docs.access_table`"


async def test_every_route_answers_every_credential_as_the_table_says(api: Api, issuer: Issuer) -> None:
    routes = interface(api.app)
    routes += [
        RouteAccess("GET", path, tuple(frozenset({one}) for one in enough))
        for path, enough in local_routes(api.app).items()
    ]
    credentials = await invalid(api, issuer)
    assert credentials.keys() == INVALID.keys()
    # An address each, because failures of one address are limited.
    for number, (name, credential) in enumerate(credentials.items()):
        client = await api.client_with(credential, (f"203.0.113.{number}", 1))
        for route in routes:
            response = await client.request(route.method, path_of(route.path))
            if route.alternatives:
                document = refused(response, 401, "unauthenticated")
                assert document["detail"].startswith(INVALID[name]), (name, document["detail"])
                assert response.headers["www-authenticate"].startswith('Bearer realm="lethe"')
            else:
                assert response.status_code not in (401, 403, 429), (name, route)
    needed = {one for route in routes for one in route.alternatives if len(one) > 1}
    for scopes in (*(frozenset({scope}) for scope in Scope), *needed):
        _, key = await api.key(*scopes)
        for credential in (key, issuer.token(scope=" ".join(scopes))):
            client = await api.client_with(credential, ("203.0.113.99", 1))
            for route in routes:
                response = await client.request(route.method, path_of(route.path))
                if route.allows(scopes):
                    assert response.status_code not in (401, 403, 429), (scopes, route, response.text)
                else:
                    document = refused(response, 403, "missing-scope")
                    missing = frozenset[Scope]().union(*route.alternatives) - scopes
                    assert all(scope in document["detail"] for scope in missing), (route, document["detail"])
                    assert any(scope in response.headers["www-authenticate"] for scope in missing), route
                    if len(route.alternatives) == 1:
                        assert all(scope in response.headers["www-authenticate"] for scope in missing), route


async def test_every_page_needs_a_session_as_the_table_says(api: Api, issuer: Issuer) -> None:
    _, key = await api.key(*Scope)
    for credential in (None, key, issuer.token(scope=" ".join(Scope))):
        client = await api.client_with(credential)
        for method, path, needs_session in pages(api.app):
            response = await client.request(method, path_of(path))
            to_login = response.headers.get("location", "").startswith("/dashboard/login")
            # Signing out leads there whoever asks.
            assert to_login is (needs_session or path == "/dashboard/logout"), (method, path)
