"""The evidence from outside: a real service, and an auditor with the command line and the public key."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tests.support.clients.command_line import CommandLine
from tests.support.models.trained_models import SMALL, Models
from tests.support.processes.lethe_process import KEY, LetheProcess


@pytest.fixture
def lethe(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.mark.slow
def test_an_auditor_checks_a_deletion_without_trusting_the_service(
    serve: Callable[..., LetheProcess],
    models: Models,
    lethe: CommandLine,
    tmp_path: Path,
    database_url: str,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = serve(models.trained(SMALL))
    monkeypatch.setenv("LETHE_URL", process.url)
    monkeypatch.setenv("LETHE_KEY", KEY)
    monkeypatch.setenv("LETHE_HOME", str(process.home))
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("REDIS_URL", redis_url)

    public = tmp_path / "log.pub"
    public.write_text(lethe("audit", "key").stdout)
    watched = ("--log-key", public, "--state", tmp_path / "seen", "--once", "--metrics", tmp_path / "watch.prom")
    assert lethe("audit", "watch", *watched).status == 0
    empty = (tmp_path / "seen").read_text()
    assert empty.split("\n")[1] == "0"

    with process.http() as http:
        answer = http.post("/deletions", json={"kind": "node", "nodes": ["12", "57"], "reference": "DSR-17"}).json()
    with process.client() as client:
        client.wait(answer["id"])
    (tmp_path / "answer.json").write_text(json.dumps(answer))

    ran = lethe("audit", "receipt", answer["id"], "--out", tmp_path / "receipt.json")
    assert ran.status == 0, ran.stderr
    check = ("audit", "verify", tmp_path / "receipt.json", "--key", public)
    ran = lethe(*check, "--salts", tmp_path / "answer.json", "--reference", "DSR-17")
    assert ran.status == 0, ran.stdout
    assert "The receipt covers 12." in ran.stdout
    assert "The receipt covers 57." in ran.stdout
    assert "It covers a deletion of kind node: completed." in ran.stdout
    assert "The receipt contains the reference DSR-17." in ran.stdout
    assert "Valid: 2 leaves in the log" in ran.stdout
    ran = lethe(*check, "--salts", tmp_path / "answer.json", "--json")
    assert json.loads(ran.stdout)["request"] == {"kind": "node", "status": "completed"}
    ran = lethe(*check, "--salts", tmp_path / "answer.json", "--reference", "DSR-18")
    assert (ran.status, "does not contain the reference DSR-18" in ran.stdout) == (1, True)
    forged = json.loads((tmp_path / "receipt.json").read_text())
    forged["entries"][0]["leaf"]["details"]["directions_removed"] += 1
    (tmp_path / "forged.json").write_text(json.dumps(forged))
    ran = lethe("audit", "verify", tmp_path / "forged.json", "--key", public)
    assert ran.status == 1
    assert "leaf 0: it is not in the signed log" in ran.stdout

    # The whole log, against the watcher's record.
    assert lethe("audit", "watch", *watched).status == 0
    assert "lethe_watch_consistent 1.0" in (tmp_path / "watch.prom").read_text()
    assert "lethe_watch_log_size 2.0" in (tmp_path / "watch.prom").read_text()
    assert lethe("audit", "export", "--out", tmp_path / "log.ndjson").status == 0
    exported = (tmp_path / "log.ndjson").read_text()
    for secret in ("DSR-17", *answer["salts"]["nodes"].values()):
        assert secret not in exported
    check_log = ("audit", "verify", tmp_path / "log.ndjson", "--key", public, "--against", tmp_path / "seen")
    assert lethe(*check_log).status == 0
    lines = exported.splitlines()
    first_leaf = next(place for place, line in enumerate(lines) if line.startswith('{"index":0,'))
    for gone, finding in ((first_leaf, "leaf 0: it is missing"), (1, "checkpoints, ")):
        (tmp_path / "log.ndjson").write_text("\n".join([*lines[:gone], *lines[gone + 1 :]]) + "\n")
        ran = lethe(*check_log)
        assert (ran.status, finding in ran.stdout) == (1, True)

    # The weights agree with their records.
    ran = lethe("audit", "recheck")
    assert ran.status == 0, ran.stdout + ran.stderr
    assert "DIFFERENT" not in ran.stdout
    assert ran.stdout.count("the same") >= 3

    # A contradicting log sets the exit status and the metric, and the evidence is kept.
    with process.http() as http:
        newest = http.get("/log/checkpoint").text
    (tmp_path / "seen").write_text(newest)
    assert lethe("audit", "watch", *watched).status == 0
    another = tmp_path / "another.pub"
    lethe("audit", "key", "--rotate", "--home", tmp_path / "another")
    another.write_text(lethe("audit", "key", "--home", tmp_path / "another").stdout)
    ran = lethe("audit", "watch", "--log-key", another, "--state", tmp_path / "other", "--once", *watched[5:])
    assert (ran.status, "not signed by a trusted key" in ran.stderr) == (1, True)
    assert (tmp_path / "other.contradiction").read_text() == newest
    assert "lethe_watch_consistent 0.0" in (tmp_path / "watch.prom").read_text()
    process.stop()
    monkeypatch.setattr(httpx2.HTTPTransport, "handle_request", _unreachable)
    assert lethe("audit", "watch", *watched).status == 5


def _unreachable(*_: object) -> httpx2.Response:
    raise httpx2.ConnectError("refused")


def test_documents_and_keys_that_are_none_are_refused_with_what_to_do(lethe: CommandLine, tmp_path: Path) -> None:
    key = tmp_path / "log.pub"
    lethe("audit", "key", "--rotate", "--home", tmp_path / "home")
    key.write_text(lethe("audit", "key", "--home", tmp_path / "home").stdout)
    document = tmp_path / "document"
    for content in ("", "no JSON", '{"format": "lethe-receipt/2"}', "[1]", "3"):
        document.write_text(content)
        ran = lethe("audit", "verify", document, "--key", key)
        assert ran.status in (1, 2), content
        assert ran.stderr
    document.write_text('{"format":"lethe-receipt/1"}')
    assert lethe("audit", "verify", document, "--key", key).status == 1
    assert lethe("audit", "verify", document, "--key", "no key").status == 2
    assert lethe("audit", "verify", document, "--key", key, "--reference", "DSR-17").status == 2
    assert lethe("audit", "verify", tmp_path / "absent", "--key", key).status == 3
    document.write_text('{"format":"lethe-export/1"}\n')
    ran = lethe("audit", "verify", document, "--key", key)
    assert (ran.status, "cut off" in ran.stdout) == (1, True)


def test_a_rotated_key_is_printed_beside_the_old(lethe: CommandLine, tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = lethe("audit", "key", "--rotate", "--home", home)
    assert first.status == 0, first.stderr
    second = lethe("audit", "key", "--rotate", "--home", home)
    assert second.stdout.startswith(first.stdout)
    assert len(second.stdout.splitlines()) == 2
    assert lethe("audit", "key", "--rotate", "--number", "1", "--home", home).status == 2
