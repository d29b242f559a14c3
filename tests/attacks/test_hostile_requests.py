"""A whole Lethe under hostile requests: nothing is answered 500, nothing is a traceback, nobody else has to wait."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.models.trained_models import SMALL, Models
from tests.support.preloaded import Start
from tests.support.processes.lethe_process import KEY, LetheProcess, authorization, copied

#: Seconds that each way of asking gets.
_BUDGET_S = float(os.environ.get("ATTACK_SECONDS", "600"))
_BODY = b'{"nodes":[' + b",".join([b"1"] * 520_000) + b"]}"

#: Answers to requests that fit the schema, for what no schema can say: cursors are the server's own, windows end after
#: they begin and after 1970, a search by nodes has no pages, a node may be deleted, a log is only so long.
_BESIDE_THE_SCHEMA = {
    "GET /audit/export": [422],
    "GET /audit/series": [422],
    "GET /audit/summary": [422],
    "GET /deletions": [400, 422],
    "GET /log/consistency": [422],
    "GET /log/proof/{index}": [422],
    "GET /predict/{node}": [410],
    "POST /deletions": [413, 422],
    "POST /deletions/search": [400, 413, 422],
    "POST /predict": [413],
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]


@pytest.fixture
def lethe(
    lethe_start: Start, database_url: str, redis_url: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LetheProcess]:
    home = tmp_path / "home"
    copied(Models(tmp_path_factory.mktemp("models")).trained(SMALL), home / "model")
    with LetheProcess(lethe_start, home, database_url=database_url, redis_url=redis_url) as process:
        yield process.start()


@contextmanager
def unharmed(lethe: LetheProcess) -> Iterator[None]:
    """Ask for a prediction all the while: each must be answered, and the log must hold no traceback.

    A process that stalls for seconds loses its lease, and predictions are 503. (How long a client waits is measured by
    `benchmarks.performance.service.attacks`.)
    """
    stop = threading.Event()
    statuses: set[int] = set()

    def ask() -> None:
        with lethe.http() as client:
            while not stop.is_set():
                statuses.add(client.get("/predict/5").status_code)
                stop.wait(0.02)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        stop.set()
        asking.join()
    assert statuses <= {200, 410}, statuses
    lethe.assert_runs()
    assert "Traceback" not in lethe.log()
    assert "unexpected_error" not in lethe.log()


def test_a_body_of_520_000_numbers_is_refused_at_once(lethe: LetheProcess) -> None:
    headers = authorization() | {"Content-Type": "application/json"}
    with unharmed(lethe), httpx2.Client(base_url=lethe.url, headers=headers, timeout=120.0) as client:
        for path in ("/predict", "/deletions", "/deletions/search") * 20:
            answer = client.post(path, content=_BODY)
            assert answer.status_code == 422, path
            assert len(answer.content) < 8_192, path


#: Parts of paths, queries and headers that programs trip over.
_PARTS = st.one_of(
    st.sampled_from(
        [
            "/",
            "..",
            "%00",
            "%0A",
            "%0D%0A",
            "%FF",
            "[",
            "//[",
            "http://[",
            "*",
            "%5C",
            "dashboard",
            "docs/assets",
            "log",
            "predict",
            "deletions",
            "search",
            "requests",
            "find",
            "login",
            "audit",
            "export",
            "proof",
            "receipt",
            "drills",
            "?cursor=",
            "?since=",
            "&until=",
            "?next=",
            "=",
            "&",
            "%",
            "+",
            "-1",
            "1e9",
            "NaN",
        ]
    ),
    st.sampled_from(["9" * 400, "x" * 3_000]),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20),
)
_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=200)
_HEADERS = st.dictionaries(
    st.sampled_from(
        [
            "Host",
            "Origin",
            "Cookie",
            "Content-Type",
            "Idempotency-Key",
            "HX-Request",
            "HX-Target",
            "HX-Current-URL",
            "Accept",
            "Sec-Fetch-Site",
            "X-Forwarded-Proto",
            "If-None-Match",
            "Range",
            "Lethe-Shown",
        ]
    ),
    st.one_of(_TEXT, st.sampled_from(["true", "[", "http://[", "same-origin", "text/html", "application/json", "a=b"])),
    max_size=5,
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=12), inner, max_size=8),
    max_leaves=30,
)
_BODIES = st.one_of(
    st.binary(max_size=2_000),
    _JSON.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries({"kind": st.sampled_from(["node", "edge", "features"]), "nodes": _JSON, "edges": _JSON}).map(
        lambda value: json.dumps(value).encode()
    ),
    st.fixed_dictionaries({"nodes": st.lists(st.text(max_size=600), max_size=50)}).map(
        lambda value: json.dumps(value).encode()
    ),
)


def test_no_path_no_header_and_no_body_is_answered_500(lethe: LetheProcess) -> None:
    ends_at = time.monotonic() + _BUDGET_S
    with unharmed(lethe):

        @settings(max_examples=500, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(
            method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "OPTIONS"]),
            path=st.lists(_PARTS, max_size=6).map("/".join),
            headers=_HEADERS,
            body=_BODIES,
        )
        def answered(method: str, path: str, headers: dict[str, str], body: bytes) -> None:
            assert _status(lethe, method, "/" + _quoted(path), headers, body) < 500, (method, path, headers, body)

        while time.monotonic() < ends_at:
            answered()


def _status(lethe: LetheProcess, method: str, path: str, headers: dict[str, str], body: bytes) -> int:
    """The status of the answer, asked for by a client that puts nothing in order."""
    with contextlib.closing(http.client.HTTPConnection(lethe.url.removeprefix("http://"), timeout=30)) as connection:
        connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
        for name, value in (authorization() | headers | {"Content-Length": str(len(body))}).items():
            connection.putheader(name, value.encode("latin-1"))
        connection.endheaders(body)
        return connection.getresponse().status


def _quoted(path: str) -> str:
    """As a hostile client sends it: what HTTP cannot carry is escaped, and nothing else is put in order."""
    return re.sub(r"[^\x21-\x7e]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), path)


def test_the_interface_keeps_to_its_description(lethe: LetheProcess, tmp_path: Path) -> None:
    """All checks of schemathesis, with sequences of requests, for as long as it may take."""
    configuration = tmp_path / "schemathesis.toml"
    expected = ["2xx", "401", "403", "404", "409", "429"]
    configuration.write_text(
        "".join(
            f'[[operations]]\ninclude-name = "{name}"\n'
            f"checks.positive_data_acceptance.expected-statuses = {[*expected, *map(str, statuses)]}\n"
            for name, statuses in _BESIDE_THE_SCHEMA.items()
        )
    )
    command = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(configuration), "run"]
    options = ["--phases", "examples,coverage,fuzzing,stateful", "--checks", "all", "--max-time", f"{_BUDGET_S:.0f}"]
    # DELETE cancels a request; what became of it can still be asked for.
    options += ["--exclude-checks", "use_after_free"]
    options += ["--header", f"Authorization: Bearer {KEY}", "--no-color", "--continue-on-failure"]
    ran = subprocess.run(
        [*command, f"{lethe.url}/openapi.json", *options], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]
    assert "Traceback" not in lethe.log()
