"""The asyncio client against the real application."""

import httpx2
import pytest

from lethe_client import AsyncLetheClient, ProblemError
from service.domain.scopes import Scope
from tests.support.service.api_harness import Api


async def test_it_requests_lists_cancels_and_exports(api: Api) -> None:
    _, key = await api.key(*Scope)
    transport = httpx2.ASGITransport(api.app)
    async with AsyncLetheClient("http://localhost", key, transport=transport) as client:
        first, second = await client.request_deletion(["12"]), await client.request_deletion(["user/38"])
        assert (await client.deletion(first.id)).status == "queued"
        assert (await client.cancel(second.id)).status == "cancelled"
        listed = [(one.id, one.status) async for one in client.deletions(kind="node", limit=1)]
        assert listed == [(second.id, "cancelled"), (first.id, "queued")]
        exported = b"".join([part async for part in client.audit_export("csv", status="queued")])
        assert first.id.encode() in exported
        assert second.id.encode() not in exported
        assert (await client.predict("12")).node == "12"
        with pytest.raises(ProblemError) as refused:
            await client.cancel(second.id)
        assert refused.value.status == 409
