"""Reporting of deletions whose requests are missing because the database was restored from an older backup."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.records import Tombstone
from service.domain.scopes import Scope
from service.domain.states import Cause
from service.domain.versions import Recovery
from service.predictions.version_rows import VersionRepository
from service.requests.tombstones import TombstoneRepository
from service.unlearner.causes import RecoveryRepository
from tests.support.clients.signing_in import SAME_ORIGIN, sign_in, token_in
from tests.support.service.api_harness import Api, serving
from tests.support.service.db_harness import made


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    """A recovery found in the store that the features of "1" and the node "gone" were deleted."""
    async with serving(database_url, tmp_path / "home") as running:
        services, keyring = running.services, running.services.keyring
        version = made(2, model=services.model, cause=Cause.RECOVERY)
        tombstones = []
        for node, kind in {"1": RequestKind.FEATURES, "gone": RequestKind.NODE}.items():
            number, digest = keyring.tombstone_hash(services.model, kind, node)
            tombstones.append(Tombstone(kind, digest, number, None))
        async with transaction(running.engine) as connection:
            await VersionRepository(connection).insert(version)
            await RecoveryRepository(connection).insert(Recovery(version, None, "1-1", 1))
            fingerprints = keyring.fingerprints()
            repository = TombstoneRepository(connection)
            await repository.insert(services.model, tombstones, fingerprints, recovery=version.id)
        yield running


async def test_a_search_by_node_shows_earlier_deletions_to_those_who_may_see_every_request(api: Api) -> None:
    for scope, visible in ((Scope.AUDIT_READ, ["1", "gone"]), (Scope.DELETIONS_READ, [])):
        client = await api.client(scope)
        answer = (await client.post("/deletions/search", json={"nodes": ["1", "2", "gone"]})).json()
        assert answer["found"] == [{"node": node, "deletion": None} for node in visible]
        assert answer["not_found"] == [node for node in ("1", "2", "gone") if node not in visible]


async def test_so_does_the_dashboard(api: Api) -> None:
    _, key = await api.key(Scope.AUDIT_READ)
    client = await api.client_with(None)
    await sign_in(client, key)
    form_token = token_in((await client.get("/dashboard/find")).text)
    for by, text, is_shown in (
        ("node", "gone", True),
        ("node", "1", True),
        ("node", "2", False),
        ("reference", "1", False),
    ):
        fields = {"form_token": form_token, "by": by, "text": text}
        found = await client.post("/dashboard/find", data=fields, headers=SAME_ORIGIN)
        assert found.status_code == 200
        assert ("which was restored from an older backup" in found.text) == is_shown
