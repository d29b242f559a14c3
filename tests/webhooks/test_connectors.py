"""Both connectors of `examples/connectors`, between a real Lethe and stand-ins of the documented interfaces.

fides: https://ethyca.com/docs/dev-docs/configuration/integrations/saas-integrations/async-integrations, and
`request_task_async_callback` of its source. Transcend: https://docs.transcend.io/docs/api-reference/PUT/v1/data-silo,
…/webhook/new-privacy-request-job and /docs/dsr-automation/api-integration/receiving-a-webhook-from-transcend.
"""

import contextlib
import hmac
import json
import socket
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import pytest
import yaml
from joserfc import jwt
from joserfc.jwk import ECKey

from tests.support.models.trained_models import SMALL, Models
from tests.support.preloaded import ROOT
from tests.support.processes.lethe_process import KEY, LetheProcess
from tests.support.processes.workers import free_port
from tests.support.service.serving import models, serve

__all__ = ["models", "serve"]

_PATIENCE_S = 60.0
_AUDIENCE = "acme"
_EXAMPLES = ROOT / "examples" / "connectors"


class StandIn(BaseHTTPRequestHandler):
    """A service on loopback; `self.server.state` is the test's."""

    def setup(self) -> None:
        super().setup()
        self.state: Any = self.server.state  # type: ignore[attr-defined]

    def answer(self, status: int, document: Any) -> None:
        content = document.encode() if isinstance(document, str) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def log_message(self, *_: object) -> None:
        """Print nothing in tests."""


@dataclass
class FidesState:
    """Status of the waiting tasks by their token, and what was reported."""

    tasks: dict[str, str] = field(default_factory=dict)
    reported: dict[str, Any] = field(default_factory=dict)


class Fides(StandIn):
    """Its callback: refused before the task waits and once it is complete; the first success is not answered."""

    def do_POST(self) -> None:
        assert self.path == "/api/v1/request-task/callback"
        token = self.headers["Authorization"].removeprefix("Bearer ")
        status = self.state.tasks[token]
        if status == "awaiting_processing":
            self.state.reported[token] = self.body()
            self.state.tasks[token] = "complete"
            self.close_connection = True
            return
        self.state.tasks[token] = "awaiting_processing" if status == "in_processing" else status
        self.answer(
            400, {"detail": f"Callback failed. Cannot queue erasure task 't' with request task status '{status}'"}
        )


@dataclass
class SombraState:
    """Its signing key, jobs that ended meanwhile, and what was reported, in order."""

    key: ECKey = field(default_factory=lambda: ECKey.generate_key("P-384"))
    ended: set[str] = field(default_factory=set)
    reported: list[tuple[str, Any]] = field(default_factory=list)


class Sombra(StandIn):
    """Its public key, and its report of an erasure."""

    def do_GET(self) -> None:
        assert (self.path, self.headers["Authorization"]) == (
            "/public-keys/sombra-general-signing-key",
            "Bearer transcend-key",
        )
        self.answer(200, self.state.key.as_pem(private=False).decode())

    def do_PUT(self) -> None:
        assert (self.path, self.headers["Authorization"]) == ("/v1/data-silo", "Bearer transcend-key")
        nonce = self.headers["x-transcend-nonce"]
        self.state.reported.append((nonce, self.body()))
        self.answer(409 if nonce in self.state.ended else 200, {})


@contextmanager
def standing_in(kind: type[StandIn], state: Any) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        server.state = state  # type: ignore[attr-defined]
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def connector(name: str, folder: Path, variables: Mapping[str, str]) -> Iterator[httpx2.Client]:
    """Run one as its first lines say; yields a client of it. It is killed at the end."""
    port = free_port()
    environment = {"PATH": "", "JOBS": str(folder / f"{name}.sqlite"), "PORT": str(port), "PAUSE_S": "0.1", **variables}
    with (folder / f"{name}.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", f"examples.connectors.{name}"], cwd=ROOT, env=environment, stderr=log
        )
    try:
        until(lambda: process.poll() is not None or listens(port))
        assert process.poll() is None, (folder / f"{name}.log").read_text()
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
            yield client
        assert process.poll() is None, (folder / f"{name}.log").read_text()
    finally:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def webhook(client: httpx2.Client, token: str, nonce: str, kind: str = "ERASURE", node: str = "7") -> int:
    """Send a webhook; returns the status. The unsigned body may name another node than the token."""
    body = {"type": kind, "coreIdentifier": {"name": "userId", "value": node}, "extras": {}}
    headers = {"x-sombra-token": token, "x-transcend-nonce": nonce}
    return client.post("/webhooks/transcend/dsr-job", headers=headers, json=body).status_code


def announcing(client: httpx2.Client, token: str, size: int) -> bytes:
    """Send a webhook that announces a body of `size` bytes, and none of it; returns the line with the status."""
    with socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=_PATIENCE_S) as peer:
        head = f"x-sombra-token: {token}\r\nx-transcend-nonce: n\r\nContent-Length: {size}"
        peer.sendall(f"POST / HTTP/1.0\r\n{head}\r\n\r\n".encode())
        return peer.recv(64).partition(b"\r\n")[0]


def with_hmac(token: str, secret: bytes) -> str:
    """Return the token's claims under another algorithm, which takes the public key for a secret."""
    signed = b".".join((urlsafe_b64encode(b'{"alg":"HS256"}').rstrip(b"="), token.split(".")[1].encode()))
    return b".".join((signed, urlsafe_b64encode(hmac.digest(secret, signed, "sha256")).rstrip(b"="))).decode()


@pytest.mark.ci
def test_each_connector_deletes_once_what_is_authentic_and_reports_it(
    models: Models, serve: Callable[..., LetheProcess], tmp_path: Path
) -> None:
    fides, sombra, port = FidesState(), SombraState(ended={"nonce-revoked"}), free_port()
    now, log = int(time.time()), tmp_path / "fides.log"

    def signed(jti: str, node: str, key: ECKey = sombra.key, **more: Any) -> str:
        claims = {"jti": jti, "value": node, "scope": "coreIdentifier", "aud": _AUDIENCE, "iat": now, **more}
        return jwt.encode({"alg": "ES384"}, claims, key, algorithms=["ES384"])

    with standing_in(Fides, fides) as fides_url, standing_in(Sombra, sombra) as sombra_url:
        common = {"LETHE_URL": f"http://127.0.0.1:{port}", "LETHE_KEY": KEY}
        of_fides = common | {"FIDES_URL": fides_url, "CONNECTOR_TOKEN": "secret"}
        of_sombra = common | {"SOMBRA_URL": sombra_url, "TRANSCEND_KEY": "transcend-key", "SOMBRA_AUDIENCE": _AUDIENCE}
        replayed = signed("job-1", "5")

        [user] = yaml.safe_load((_EXAMPLES / "fides.yml").read_text())["saas_config"]["endpoints"]
        delete = user["requests"]["delete"]
        assert [delete["method"], delete["async_config"]] == ["DELETE", {"strategy": "callback"}]

        def erase(client: httpx2.Client, node: str, token: str = "", bearer: str = "secret") -> int:
            fides.tasks.setdefault(token, "in_processing")
            headers = {one["name"]: one["value"].replace("<reply_to_token>", token) for one in delete["headers"]}
            headers |= {"Authorization": f"Bearer {bearer}", "reply-to": fides_url}
            return client.delete(delete["path"].replace("<external_id>", node), headers=headers).status_code

        # Lethe is away.
        with connector("fides", tmp_path, of_fides) as client:
            assert erase(client, "3", "token-3", "another") == 401
            assert [erase(client, "3"), erase(client, "", "token-3")] == [400, 400]
            assert [erase(client, "3", "token-3"), erase(client, "4", "token-3")] == [202, 202]
            assert erase(client, "no%20body", "token-nobody") == 202
            until(lambda: "Lethe does not answer" in log.read_text())
        with connector("transcend", tmp_path, of_sombra) as client:
            for forged in (
                "",
                "e30.e30.",
                signed("job-0", "6", ECKey.generate_key("P-384")),
                with_hmac(signed("job-0", "6"), sombra.key.as_pem(private=False)),
                signed("job-0", "6", aud="another"),
                signed("job-0", "6", scope="dhEncrypted"),
                signed("job-0", "6", exp=now - 3600),
                f"{replayed.rpartition('.')[0]}.{signed('job-0', '6').rpartition('.')[2]}",
            ):
                assert webhook(client, forged, "nonce-0") == 401
            assert webhook(client, signed("job-0", "6"), "nonce-0", "ACCESS") == 400
            # Without a nonce, the outcome could not be reported.
            assert webhook(client, replayed, "") == 400
            # Bodies are read only of authentic webhooks, and only small ones.
            for token, status in (("", b"401"), (replayed, b"400")):
                assert status in announcing(client, token, 1 << 40)
            assert webhook(client, replayed, "nonce-5") == 200
            assert webhook(client, replayed, "nonce-attacker", node="6") == 200
            assert webhook(client, signed("job-2", "nobody"), "nonce-nobody") == 200
            assert webhook(client, signed("job-3", "no one"), "nonce-revoked") == 200
        assert not fides.reported
        assert not sombra.reported
        assert "/nodes/" not in log.read_text()

        # Both were killed above. Lethe comes back, and so do they.
        lethe = serve(models.trained(SMALL), port=port)
        with connector("fides", tmp_path, of_fides), connector("transcend", tmp_path, of_sombra) as client:
            until(lambda: not (waiting(tmp_path, "fides") or waiting(tmp_path, "transcend")))
            assert webhook(client, replayed, "nonce-late") == 200
            time.sleep(0.3)
        assert fides.reported == {"token-3": {"rows_masked": 1}, "token-nobody": {"rows_masked": 0}}
        assert sorted(sombra.reported, key=str) == [
            ("nonce-5", {}),
            ("nonce-nobody", {"status": "SKIPPED", "message": "Lethe has no such node."}),
            ("nonce-revoked", {"status": "SKIPPED", "message": "Lethe has no such node."}),
        ]
        with lethe.client() as typed:
            assert typed.predict_many(["3", "4", "5", "6", "7"]).deleted == ["3", "5"]
            assert [one.status for one in typed.deletions()] == ["completed", "completed"]


def waiting(folder: Path, name: str) -> bool:
    """Whether the file still contains what a connector erases once it has reported."""
    content = (folder / f"{name}.sqlite").read_bytes()
    return any(secret in content for secret in (b"token-", b"nonce-", b"no body", b"nobody"))


@pytest.mark.slow
def test_a_client_that_sends_nothing_is_cut(tmp_path: Path) -> None:
    own = {"LETHE_URL": "http://127.0.0.1:9", "LETHE_KEY": KEY, "CONNECTOR_TOKEN": "secret"}
    with (
        connector("fides", tmp_path, own) as client,
        socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=_PATIENCE_S) as silent,
    ):
        silent.sendall(b"DELETE /nodes/3 HTTP/1.0\r\n")
        assert silent.recv(1) == b""


@pytest.mark.parametrize("name", ["jobs", "fides", "transcend"])
def test_it_has_at_most_sixty_lines(name: str) -> None:
    assert len((_EXAMPLES / f"{name}.py").read_text().splitlines()) <= 60
