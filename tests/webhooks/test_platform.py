"""The platform of docs/webhooks.md, run as printed there, with a real Lethe."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import pytest

from tests.support.clients.command_line import CommandLine
from tests.support.clients.signing_in import SAME_ORIGIN, token_in
from tests.support.models.trained_models import SMALL, Models
from tests.support.preloaded import ROOT
from tests.support.processes.lethe_process import KEY, LetheProcess
from tests.support.service.serving import models, serve

__all__ = ["models", "serve"]

_PATIENCE_S = 120.0


@pytest.fixture
def lethe_command(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


def printed() -> str:
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "webhooks.md").read_text(), re.DOTALL)
    return str(code)


@contextmanager
def receiving(receiver: Any) -> Iterator[str]:
    """The platform's receiver on a free port; yields its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), receiver) as server:
        receiver.log_message = lambda *_: None
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/lethe"
        finally:
            server.shutdown()
            thread.join()


def until(holds: Callable[[], bool], lethe: LetheProcess) -> None:
    """Poll until `holds`, while Lethe runs."""
    end = time.monotonic() + _PATIENCE_S
    while not holds():
        lethe.assert_runs()
        assert time.monotonic() < end, lethe.log()
        time.sleep(0.05)


def test_it_has_thirty_lines() -> None:
    assert len([line for line in printed().splitlines() if line.strip()]) <= 30


@pytest.mark.ci
def test_thirty_lines_connect_a_platform(
    models: Models,
    serve: Callable[..., LetheProcess],
    lethe_command: CommandLine,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lethe = serve(models.trained(SMALL), webhook_networks="127.0.0.1", repair="always", repair_budget=60)
    names = {"DATABASE_URL": database_url, "LETHE_HOME": str(lethe.home), "LETHE_WEBHOOK_NETWORKS": "127.0.0.1"}
    names |= {"LETHE_URL": lethe.url, "LETHE_KEY": KEY}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    platform: dict[str, Any] = {"__name__": "platform"}
    exec(compile(printed(), "docs/webhooks.md", "exec"), platform)
    with receiving(platform["Receiver"]) as url:
        added = lethe_command("webhooks", "add", url)
        assert added.status == 0, added.stderr
        secret, endpoint = added.stdout.strip(), re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", added.stderr)[0]
        monkeypatch.setenv("WEBHOOK_SECRET", secret)
        pinged = lethe_command("webhooks", "ping", endpoint)
        assert (pinged.status, pinged.stdout.strip()) == (0, "It answered 204.")
        platform["ask"]("DSR-31", ["3", "4"])
        platform["ask"]("DSR-31", ["3", "4"])
        until(lambda: len(platform["SEEN"]) == 4, lethe)
        assert platform["TICKETS"]["DSR-31"][1] == "completed"
        with lethe.http() as client:
            events = client.get("/events").json()["events"]
            assert [event["type"].partition(".")[2] for event in events] == [
                *("accepted", "applied", "repaired", "completed"),
            ]  # fmt: skip
            assert {event["id"] for event in events} == platform["SEEN"]
        until(lambda: {one["event"]["id"] for one in deliveries(lethe, "delivered")} == platform["SEEN"], lethe)
        # A key other than the endpoint's is refused, and the event waits.
        monkeypatch.setenv("WEBHOOK_SECRET", "whsec_" + "A" * 43 + "=")
        platform["ask"]("DSR-32", ["5"])
        until(lambda: "It answered 401." in {one["answer"] for one in deliveries(lethe, "waiting")}, lethe)
        assert "It answered 401." in shown(lethe)
        listed = lethe_command("webhooks", "list")
        assert url in listed.stdout
        assert secret not in listed.stdout + listed.stderr
        assert lethe_command("webhooks", "remove", endpoint).status == 0
        assert lethe_command("webhooks", "remove", endpoint).status == 3
        assert "was removed" in lethe_command("webhooks", "list").stdout
    assert secret not in lethe.log()
    assert not found_in(lethe.home, secret.removeprefix("whsec_").encode())


def deliveries(lethe: LetheProcess, state: str) -> list[dict[str, Any]]:
    """Return the deliveries in a state."""
    with lethe.http() as client:
        found: list[dict[str, Any]] = client.get("/webhooks/deliveries", params={"state": state}).json()["deliveries"]
        return found


def shown(lethe: LetheProcess) -> str:
    """Return the page of webhooks."""
    with httpx2.Client(base_url=lethe.url, follow_redirects=True) as visitor:
        fields = {"form_token": token_in(visitor.get("/dashboard/login").text), "key": KEY, "next": "/dashboard"}
        visitor.post("/dashboard/login", data=fields, headers=SAME_ORIGIN).raise_for_status()
        page = visitor.get("/dashboard/webhooks")
        assert page.status_code == 200, page.text
        return page.text


def found_in(folder: Path, secret: bytes) -> list[Path]:
    """Return the files of a folder that contain a secret."""
    return [path for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]
