"""The application over a real database, behind the HTTP protocol that serves it, and called byte for byte."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import httpx2
import uvicorn
from prometheus_client import CollectorRegistry

from service.domain.scopes import Scope
from service.log.signed_checkpoints import LogSigner
from service.log.signing_keys import LogKeys
from service.observability.metrics import UnlearningMetrics
from service.processes.api_process import server_config
from tests.support.clients.signing_in import sign_in
from tests.support.inputs.routes import KEY, Call, Route
from tests.support.service.api_harness import Api, serving

#: Longest wait for an answer (seconds).
_PATIENCE_S = 20.0


@dataclass(frozen=True)
class Answer:
    """An answer: its status, and its head and body as text."""

    status: int
    head: str
    body: str

    @property
    def is_problem(self) -> bool:
        return "content-type: application/problem+json" in self.head.lower()


@dataclass
class Asked:
    """A running application and its client, with a key of all scopes and a session."""

    api: Api
    port: int
    key: str
    cookie: str
    #: Values for the path parameters of valid calls.
    filled: dict[str, str]

    async def __call__(self, call: Call) -> Answer:
        """Send a call. Raises AssertionError, with the call, if there is no answer."""
        given = {name.lower() for name, _ in call.headers}
        own = {"Host": "localhost", "Authorization": KEY, "Cookie": self.cookie, "Connection": "close"}
        headers = [one for one in own.items() if one[0].lower() not in given]
        headers += call.headers
        if call.body is not None:
            headers.append(("Content-Length", str(len(call.body))))
        lines = [f"{call.method} {call.target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
        sent = "\r\n".join(lines).replace(KEY, f"Bearer {self.key}").encode() + (call.body or b"")
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(sent)
            answer = await asyncio.wait_for(reader.read(), _PATIENCE_S)
        finally:
            writer.close()
        head, _, body = answer.decode("utf-8", "replace").partition("\r\n\r\n")
        assert head.startswith("HTTP/1."), f"not answered: {call}"
        return Answer(int(head.split()[1]), head, body)

    def good(self, route: Route) -> Call:
        """Return a valid call of a route."""
        return route.call(self.filled)


@asynccontextmanager
async def asked(database_url: str, home: Path) -> AsyncIterator[Asked]:
    """Serve an application with a request and a signed log; there is no unlearner, so requests stay queued."""
    async with serving(database_url, home, max_queued_nodes=10**9) as api:
        bound = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(server_config(api.app))
        running = asyncio.create_task(server.serve(sockets=[bound]))
        try:
            port = bound.getsockname()[1]
            _, key = await api.key(*Scope)
            headers = {"Authorization": f"Bearer {key}"}
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
                accepted = (await client.post("/deletions", json={"kind": "node", "nodes": ["3"]})).json()
                await api.complete(accepted["id"])
                log_keys = LogKeys.open(home / "keys")
                await LogSigner(api.engine, log_keys, UnlearningMetrics(CollectorRegistry())).sign_pending()
                assert (await sign_in(client, key)).status_code == 303
                cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
            filled = {
                "request_id": str(UUID(accepted["id"])),
                "index": "0",
                "node": "1",
                "name": "page.js",
                "model": "tiny",
                "version": "1",
            }
            yield Asked(api, port, key, cookie, filled)
        finally:
            server.should_exit = True
            await running
            bound.close()
