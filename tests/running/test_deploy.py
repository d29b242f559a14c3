"""The examples in `deploy/`, run by the programs that they are written for.

Debian's packages `nginx-light`, `caddy` and `systemd` have them.
"""

import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.preloaded import ROOT, Start
from tests.support.processes.lethe_process import LetheProcess, authorization
from tests.support.processes.workers import free_port
from tests.support.programs import find_program
from tests.support.service.bodies import node_body
from tests.support.service.certificates import Certificate

pytestmark = pytest.mark.slow


def example(name: str, changes: Mapping[str, str]) -> str:
    """Return an example with this test's addresses and files; each text that is replaced must be in it."""
    text = (ROOT / "deploy" / name).read_text()
    for old, new in changes.items():
        assert old in text, f"{name} has no {old!r}"
        text = text.replace(old, new)
    return text


def nginx(lethe: LetheProcess, port: int, own: Certificate, folder: Path) -> list[str]:
    """Return the command that runs nginx with the example."""
    changes = {
        "127.0.0.1:8000": lethe.url.removeprefix("http://"),
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/lethe/tls/certificate.pem": str(own.certificate),
        "/etc/lethe/tls/key.pem": str(own.key),
    }
    (folder / "lethe.conf").write_text(example("nginx.conf", changes))
    temporary = "".join(f"{each}_temp_path {folder}/{each};" for each in ("proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {folder}/body; {temporary} include {folder}/lethe.conf; }}\n"
    )
    return [str(find_program("nginx")), "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def caddy(lethe: LetheProcess, port: int, own: Certificate, folder: Path) -> list[str]:
    """Return the command that runs Caddy with the example, and with this test's certificate."""
    address = f"https://127.0.0.1:{port} {{\n\ttls {own.certificate} {own.key}"
    changes = {"127.0.0.1:8000": lethe.url.removeprefix("http://"), "lethe.example.com {": address}
    own_options = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"
    (folder / "Caddyfile").write_text(own_options + example("Caddyfile", changes))
    return [str(find_program("caddy")), "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[None]:
    with (folder / "log").open("w") as log:
        program = subprocess.Popen(command, cwd=folder, env={"HOME": str(folder)}, stderr=log, stdout=log)
    try:
        yield
        assert program.poll() is None, (folder / "log").read_text()
    finally:
        program.terminate()
        program.wait()


@pytest.mark.parametrize(
    "proxy",
    [
        pytest.param(nginx, marks=pytest.mark.needs("nginx")),
        pytest.param(caddy, marks=pytest.mark.needs("caddy")),
    ],
)
def test_a_proxy_with_tls_passes_callers_on_also_during_an_upgrade(
    proxy: object, home: Path, servers: dict[str, str], tmp_path: Path, lethe_start: Start
) -> None:
    settings: dict[str, Any] = {**servers, "trusted_proxies": "127.0.0.1", "api_workers": 1}
    folder = tmp_path / "proxy"
    folder.mkdir()
    own, port = Certificate.make(tmp_path), free_port()
    trusted = ssl.create_default_context(cafile=own.certificate)
    assert callable(proxy)
    with (
        LetheProcess(lethe_start, home, part="old", **settings).start() as old,
        LetheProcess(lethe_start, home, part="new", arguments="--replace", **settings) as new,
        running(proxy(old, port, own, folder), folder),
        httpx2.Client(
            base_url=f"https://127.0.0.1:{port}",
            verify=trusted,
            timeout=30.0,
        ) as http,
    ):
        answers = False
        while not answers:
            with suppress(httpx2.ConnectError):
                answers = http.get("/readyz").status_code == 200
            time.sleep(0.05)
        # It counts as a caller from elsewhere, and its connection as encrypted.
        assert http.get("/docs").status_code == 401
        http.headers |= authorization()
        assert http.post("/deletions", json=node_body("1")).status_code == 202
        new.launch()
        while old.runs():
            assert http.get("/predict/99").status_code == 200
            assert http.post("/predict", json={"nodes": ["98", "99"]}).status_code == 200
        assert new.until_ready() is None
        assert old.ended().status == 0
        assert http.post("/deletions", json=node_body("2")).status_code == 202
        assert new.delete(["3"]).status == "completed"
        assert new.stop().status == 0


@pytest.mark.needs("systemd-analyze")
def test_systemd_accepts_the_unit_and_finds_it_well_confined(tmp_path: Path) -> None:
    unit = tmp_path / "lethe@1.0.service"
    unit.write_text(example("lethe@.service", {"/opt/lethe/%i/lethe": str(ROOT / "lethe")}))
    analyze = str(find_program("systemd-analyze"))
    verified = subprocess.run([analyze, "verify", "--man=no", unit], check=False, capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    # From 0 (best) to 100.
    subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=20", unit], check=True, stdout=subprocess.DEVNULL
    )
