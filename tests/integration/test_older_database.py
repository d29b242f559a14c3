"""What is told of deletions of which the store alone knows, because the database was restored from an older backup."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from api_harness import Api, serving
from test_dashboard_access import SAME_ORIGIN, sign_in, token_in

from service.domain.states import RequestKind, Scope


@pytest.fixture
async def api(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """The store alone knows of the features of "1" and of the node "gone"."""
    async with serving(database_url, tmp_path / "home") as running:
        services = running.services
        subjects = {"1": RequestKind.FEATURES, "gone": RequestKind.NODE}
        kept = frozenset(
            services.keyring.tombstone_hash(services.model, kind, node)[1] for node, kind in subjects.items()
        )
        monkeypatch.setattr(services.tombstones, "_kept", lambda: kept)
        yield running


async def test_a_search_by_node_tells_those_who_may_see_every_request(api: Api) -> None:
    for scope, told in ((Scope.AUDIT_READ, ["1", "gone"]), (Scope.DELETIONS_READ, [])):
        client = await api.client(scope)
        answer = (await client.post("/deletions/search", json={"nodes": ["1", "2", "gone"]})).json()
        assert (answer["found"], answer["not_found"]) == ([], ["1", "2", "gone"])
        assert answer["deleted_by_unknown_request"] == told


async def test_so_does_the_dashboard(api: Api) -> None:
    _, key = await api.key(Scope.AUDIT_READ)
    client = await api.client_with(None)
    await sign_in(client, key)
    form_token = token_in((await client.get("/dashboard/find")).text)
    for by, text, told in (
        ("node", "gone", True),
        ("node", "1", True),
        ("node", "2", False),
        ("reference", "1", False),
    ):
        fields = {"form_token": form_token, "by": by, "text": text}
        found = await client.post("/dashboard/find", data=fields, headers=SAME_ORIGIN)
        assert found.status_code == 200
        assert ("restored from an older backup, does not know" in found.text) == told
