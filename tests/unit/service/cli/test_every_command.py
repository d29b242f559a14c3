"""Properties of every command: its help, its JSON, its completion, and its exit statuses."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from lethe_client import LetheClient
from model_store import build
from service.cli.console import ExitStatus
from service.cli.main import build as command_line
from service.log.checkpoints import Checkpoint, Signer, sign
from service.log.merkle import leaf_hash
from service.version import VERSION
from tests.support.clients.command_line import CommandLine
from tests.support.clients.lethe_stub import LetheStub
from tests.support.everyday import every_case
from tests.support.evidence.rfc6962 import mth
from tests.support.preloaded import ROOT

#: Commands without --json, and why.
WITHOUT_JSON = {
    "serve": "runs until it is stopped",
    "audit receipt": "what it prints is a document in JSON, as it is kept",
    "audit export": "the same, a document a line",
}
SIGNER = Signer("lethe.test", bytes(32))
KEY = str(SIGNER.public)
RECEIVED = "2026-03-02T09:15:04.120000Z"
QUEUED = {"id": "r1", "status": "queued", "kind": "node", "count": 1, "received_at": RECEIVED}


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every command with its name as typed."""
    for name, each in command.commands.items():
        if hasattr(each, "commands"):
            yield from walk(each, (*path, name))
        else:
            yield " ".join((*path, name)), each


COMMANDS = dict(walk(typer.main.get_command(command_line())))
#: Commands that call a running Lethe.
TALKING = [name for name, command in COMMANDS.items() if any("--url" in one.opts for one in command.params)]


def call(name: str) -> list[str]:
    """Return a command that calls Lethe, with its required arguments."""
    arguments = [one for one in COMMANDS[name].params if one.param_type_name == "argument"]
    needed = {
        "add": ["--features", "{}"],
        "correct": ["--label", "x"],
        "audit watch": ["--log-key", KEY, "--once"],
        "handle": ["--reason", "x"],
        "hold": ["--reason", "x"],
        "extend": ["--reason", "x", "--until", "2027-01-31"],
    }.get(name, [])
    return [*name.split(), *("x" for _ in arguments), *needed]


class Always(dict[tuple[str, str], Any]):
    """A stub's answers to every request."""

    def __init__(self, status: int) -> None:
        document = {"type": "urn:x", "title": "T", "detail": "It is so.", "remedy": "Do this.", "status": status}
        super().__init__()
        self._answer = status, document

    def get(self, key: object, default: object = None) -> Any:
        return self._answer


@every_case("name", COMMANDS)
def test_a_command_and_each_of_its_options_is_explained_in_sentences(name: str) -> None:
    command = COMMANDS[name]
    first = command.help.partition("\n\n")[0]
    assert first[0].isupper()
    assert first.rstrip().endswith("."), first
    assert f"./lethe {name}" in command.help
    for one in command.params:
        # `serve` adds the names of variables to its help.
        said = re.sub(r" \\\[[A-Z_]+\]$", "", one.help or "")
        assert said.endswith("."), (one.name, one.help)


@every_case("name", COMMANDS)
def test_a_command_that_reports_does_so_in_json_too(name: str) -> None:
    has_json = any("--json" in one.opts for one in COMMANDS[name].params)
    assert has_json != (name in WITHOUT_JSON)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_option_is_a_wrong_call_of_every_command(lethe: CommandLine, name: str) -> None:
    ran = lethe(*name.split(), "--no-such-option")
    assert (ran.status, ran.stdout) == (ExitStatus.USAGE, "")
    assert "No such option: --no-such-option" in ran.stderr


@pytest.mark.parametrize("name", TALKING)
def test_what_does_not_exist_is_distinguished_from_what_is_refused(
    lethe: CommandLine, stub: LetheStub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    statuses = {401: ExitStatus.REFUSED, 404: ExitStatus.NOT_FOUND, 409: ExitStatus.REFUSED, 410: ExitStatus.NOT_FOUND}
    for answered, status in statuses.items():
        stub.answers = Always(answered)
        ran = lethe(*call(name))
        assert (ran.status, ran.stdout) == (status, ""), answered
        assert "It is so." in ran.stderr


#: Commands that query the database of a Lethe.
ASKING = [
    "keys create x --scope audit:read",
    "keys list",
    "keys rotate 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11",
    "model list",
    "keys revoke 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11",
    "audit export",
    "audit recheck",
]


@pytest.mark.parametrize("name", ASKING)
def test_where_no_lethe_has_run_none_is_begun_by_asking(
    lethe: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    for variable in ("DATABASE_URL", "REDIS_URL"):
        monkeypatch.delenv(variable, raising=False)
    ran = lethe(*name.split())
    assert (ran.status, ran.stdout) == (ExitStatus.UNREACHABLE, "")
    assert f"No Lethe runs here, in {tmp_path / 'home'}." in ran.stderr
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("name", TALKING)
def test_where_no_lethe_runs_that_is_what_is_said(
    lethe: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LETHE_URL")
    ran = lethe(*call(name))
    assert (ran.status, ran.stdout) == (ExitStatus.UNREACHABLE, "")
    assert f"No Lethe runs here, in {tmp_path / 'home'}." in ran.stderr
    assert "./lethe serve" in ran.stderr


def test_json_goes_to_stdout_a_document_a_line_and_messages_to_stderr(lethe: CommandLine, stub: LetheStub) -> None:
    salts = {"nodes": {"12": "5f1d"}, "reference": None}
    stub.answers["POST", "/deletions"] = 202, QUEUED | {"salts": salts, "already_deleted": {"9": "r0"}}
    stub.answers["GET", "/deletions/r1"] = 200, QUEUED | {"status": "completed"}
    ran = lethe("delete", "12", "--wait", "--json")
    assert ran.status == 0
    asked, done = map(json.loads, ran.stdout.splitlines())
    assert (asked["salts"]["nodes"], asked["received_at"]) == (salts["nodes"], RECEIVED)
    assert done["status"] == "completed"
    assert "9: already deleted by request r0." in ran.stderr
    assert "5f1d" not in ran.stderr, "they are in the JSON"


def test_a_watch_says_in_json_what_each_round_found(
    lethe: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = lethe(*call("audit watch"), "--url", "http://127.0.0.1:1", "--json")
    assert ran.status == ExitStatus.UNREACHABLE
    assert json.loads(ran.stdout)["outcome"] == "unanswered"


PROOF, CHECK = ("GET", "/log/proof/0?size=1"), ("POST", "/log/checks")


@pytest.mark.parametrize(
    ("leaves", "denied", "status", "kind", "ended"),
    [
        (1, PROOF, 404, "urn:lethe:problem:not-found", ExitStatus.FAILED),
        (1, PROOF, 422, "urn:lethe:problem:invalid-request", ExitStatus.FAILED),
        (2, CHECK, 409, "urn:lethe:problem:conflict", ExitStatus.FAILED),
        # From a proxy, and with a key that lacks the right.
        (1, PROOF, 404, "about:blank", ExitStatus.NOT_FOUND),
        (1, PROOF, 403, "urn:lethe:problem:missing-scope", ExitStatus.REFUSED),
        (2, CHECK, 409, "about:blank", ExitStatus.REFUSED),
        (2, CHECK, 404, "urn:lethe:problem:not-found", ExitStatus.NOT_FOUND),
    ],
)
def test_a_server_that_denies_what_it_has_signed_contradicts_itself(
    lethe: CommandLine,
    stub: LetheStub,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    leaves: int,
    denied: tuple[str, str],
    status: int,
    kind: str,
    ended: ExitStatus,
) -> None:
    monkeypatch.chdir(tmp_path)
    first, note = (sign(Checkpoint(SIGNER.public.name, size, mth([b"leaf"] * size)), [SIGNER]) for size in (1, leaves))
    monkeypatch.setattr(LetheClient, "log_checkpoint", lambda _: note)
    if leaves == 2:
        # Either proof consists of the other of two leaves.
        other = leaf_hash(b"leaf").hex()
        Path("lethe-log.checkpoint").write_text(first)
        stub.answers["GET", "/log/consistency?from=1&to=2"] = 200, {"from": 1, "to": 2, "proof": [other]}
        for index in range(2):
            found = {"index": index, "size": 2, "leaf_hash": other, "proof": [other]}
            stub.answers["GET", f"/log/proof/{index}?size=2"] = 200, found
    stub.answers[denied] = status, {"type": kind, "detail": "That was refused.", "remedy": "Ask for less."}
    ran = lethe(*call("audit watch"), "--metrics", "watch.prom")
    assert ran.status == ended
    assert "That was refused." in ran.stderr
    evidence, metrics = Path("lethe-log.checkpoint.contradiction"), Path("watch.prom")
    assert evidence.exists() is metrics.exists() is (ended is ExitStatus.FAILED)
    if ended is ExitStatus.FAILED:
        assert evidence.read_text() == note
        assert "lethe_watch_consistent 0.0" in metrics.read_text()


def test_ctrl_c_while_waiting_names_the_request_that_goes_on(
    lethe: CommandLine, stub: LetheStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LetheClient, "wait", press)
    stub.answers["POST", "/deletions"] = 202, QUEUED
    ran = lethe("delete", "12", "--wait")
    assert (ran.status, ran.stdout) == (ExitStatus.INTERRUPTED, "r1 queued: 1 node\n")
    assert "`./lethe audit show r1` shows its progress" in ran.stderr


def test_ctrl_c_while_training_says_that_there_is_no_model(
    lethe: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def press(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "build_model", press)
    ran = lethe("train", "--dataset", "synthetic:n=60,d=12,classes=3,seed=1", "--out", tmp_path / "m")
    assert (ran.status, ran.stdout) == (ExitStatus.INTERRUPTED, "")
    assert f"{tmp_path / 'm'} contains no model" in ran.stderr
    assert not (tmp_path / "m").exists()


def test_the_version_is_printed(lethe: CommandLine) -> None:
    assert lethe("--version").stdout == f"lethe {VERSION}\n"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(("serv",), "serve"), (("audit", "sumary"), "summary"), (("audit", "summary", "--sinc", "x"), "--since")],
)
def test_what_was_meant_is_offered(lethe: CommandLine, typed: tuple[str, ...], meant: str) -> None:
    ran = lethe(*typed)
    assert (ran.status, ran.stdout) == (ExitStatus.USAGE, "")
    assert meant in ran.stderr


def test_a_file_that_is_no_text_is_a_wrong_call(lethe: CommandLine, tmp_path: Path) -> None:
    picture = tmp_path / "receipt.png"
    picture.write_bytes(b"\x89PNG\r\n\xff\xfe")
    for ran in (lethe("audit", "verify", picture, "--key", KEY), lethe("delete", "--file", picture)):
        assert ran.status == ExitStatus.USAGE
        assert "Check the path, or convert the file to UTF-8" in ran.stderr


def test_the_documents_have_the_table_of_statuses() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    rows = [f"| {status.value} | {status.meaning} |" for status in ExitStatus]
    assert "\n".join(rows) in page


def completed(folder: Path, *words: str) -> list[str]:
    """Return bash's completions of the last word, by the output of `--show-completion`."""
    program = folder / "lethe"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m service.cli "$@"\n')
    program.chmod(0o755)
    typed = " ".join(f"'{word}'" for word in ("./lethe", *words))
    script = (
        f"source <(./lethe --show-completion bash) && COMP_WORDS=({typed}) COMP_CWORD={len(words)} "
        '&& _lethe_completion ./lethe && printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return ran.stdout.split()


@pytest.mark.ci
def test_bash_completes_commands_options_and_values(tmp_path: Path) -> None:
    assert completed(tmp_path, "audit", "su") == ["summary"]
    assert "--json" in completed(tmp_path, "keys", "list", "--")
    assert completed(tmp_path, "keys", "create", "shop", "--scope", "deletions:") != []
