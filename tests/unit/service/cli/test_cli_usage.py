"""How commands are found, explained and refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.cli.console import note, print_result, table
from service.cli.serve import as_torchrun_says
from service.settings import Settings
from tests.support.clients.command_line import CommandLine, Ran
from tests.support.preloaded import ROOT, Start


@pytest.fixture
def own_home(unset: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LETHE_HOME", str(tmp_path / "home"))


@pytest.fixture
def lethe(capsys: pytest.CaptureFixture[str], own_home: None) -> CommandLine:
    return CommandLine(capsys)


def test_every_setting_is_a_flag_of_serve(lethe: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    printed = lethe("serve", "--help").stdout
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')} " in printed
    assert "LETHE_MAX_BATCH_NODES" in printed
    assert "DATABASE_URL" in printed


@pytest.mark.parametrize(
    "wrong",
    [
        ("forget",),
        ("predict",),
        ("delete",),
        ("add",),
        ("add", "anna"),
        ("add", "anna", "--features", "1,2"),
        ("add", "anna", "--features", '["1"]'),
        ("add", "--label", "1"),
        ("correct",),
        ("correct", "12"),
        ("correct", "12", "--label", "[1, x]"),
        ("delete", "1", "--kind", "everything"),
        ("delete", "1", "--kind", "edge"),
        ("train", "--dataset", "cora"),
        ("train", "--dataset", "cora", "--out", "x", "--hops", "-1"),
        ("train", "--dataset", "cora", "--out", "x", "--inject-class"),
        ("train", "--dataset", "cora", "--out", "x", "--lambda", "0"),
        ("train", "--dataset", "cora", "--out", "x", "--lambda", "1e39"),
        ("keys", "create", "shop", "--scope", "everything"),
        ("keys", "revoke", "not-an-id"),
        ("serve", "--port", "eighty"),
        ("serve", "--device", "tpu"),
        ("predict", "1", "--url", "http://127.0.0.1:1"),
        ("keys", "create", "shop"),
    ],
    ids=" ".join,
)
def test_a_wrong_call_exits_with_2_and_says_why_on_stderr(lethe: CommandLine, wrong: tuple[str, ...]) -> None:
    ran = lethe(*wrong)
    assert ran.status == 2
    assert ran.stderr.strip()
    assert not ran.stdout


def test_all_hosts_at_once_are_no_place_to_meet_workers(lethe: CommandLine) -> None:
    ran = lethe("serve", "--workers-address", "0.0.0.0")
    assert (ran.status, ran.stdout) == (2, "")
    assert "LETHE_WORKERS_ADDRESS" in ran.stderr


@pytest.mark.parametrize(("rank", "role"), [("0", "unlearner"), ("1", "worker"), ("2", "worker")])
def test_torchrun_says_which_of_the_workers_this_is(rank: str, role: str) -> None:
    environment = {"TORCHELASTIC_RUN_ID": "none", "RANK": rank, "WORLD_SIZE": "3", "MASTER_ADDR": "10.0.0.1"}
    flags = {"workers": None, "workers_address": None, "device": "cpu"}
    settings = {"workers": "3", "workers_address": "10.0.0.1", "device": "cpu"}
    assert as_torchrun_says(None, flags, environment) == (role, settings)
    assert as_torchrun_says(None, flags | {"workers_address": "10.0.0.2"}, environment)[1] == (
        settings | {"workers_address": "10.0.0.2"}
    )
    assert as_torchrun_says(None, flags, {"RANK": rank}) == (None, flags)


def test_a_bad_setting_is_named_with_its_variable(lethe: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETHE_MAX_WAIT_MS", "soon")
    ran = lethe("serve")
    assert (ran.status, ran.stdout) == (2, "")
    assert "LETHE_MAX_WAIT_MS" in ran.stderr
    assert "Correct the variable or flag" in ran.stderr


def test_a_server_that_does_not_answer_is_a_failure_with_a_remedy(lethe: CommandLine) -> None:
    ran = lethe("audit", "show", "r1", "--url", "http://127.0.0.1:1", "--key", "k")
    assert (ran.status, ran.stdout) == (5, "")
    assert "http://127.0.0.1:1" in ran.stderr
    assert "./lethe serve" in ran.stderr


def served(lethe_start: Start, model: Path) -> Ran:
    """Run `serve --model`, with the output of its processes."""
    log = model.with_name("log")
    process = lethe_start(["serve", "--model", str(model)], os.environ | {"PYTHONPATH": str(ROOT)}, model.parent, log)
    with process.stdout:
        printed = process.stdout.read()
    return Ran(process.wait(), printed, log.read_text())


def test_serving_a_folder_without_a_model_is_refused(lethe_start: Start, own_home: None, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    ran = served(lethe_start, folder)
    assert ran.status == 2
    assert "./lethe train" in ran.stderr


def test_help_does_not_load_the_numerics() -> None:
    """A launcher that takes seconds to print its help is not used."""
    code = (
        "import sys\n"
        "from service.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "sys.exit(bool({'torch', 'scipy', 'fastapi', 'sqlalchemy'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("https://192.88.99.1/lethe", "192.88.99.1 is not a public address"),
        ("https://[3fff::1]/lethe", "3fff::1 is not a public address"),
        ("http://127.0.0.1:9/lethe", "LETHE_WEBHOOK_NETWORKS"),
        ("http://8.8.8.8/lethe", "sent by https"),
    ],
)
def test_an_address_that_nothing_is_sent_to_is_refused_when_it_is_added(
    lethe: CommandLine, address: str, message: str
) -> None:
    ran = lethe("webhooks", "add", address)
    assert ran.status == 2
    assert message in ran.stderr


def test_a_name_of_a_key_is_shown_as_it_is(lethe: CommandLine) -> None:
    ran = lethe("keys", "create", "a\u202eb", "--scope", "audit:read")
    assert ran.status == 2
    assert "U+202E" in ran.stderr
    assert "\u202e" not in ran.stderr


def test_what_is_printed_writes_to_the_terminal_nothing_but_letters(capsys: pytest.CaptureFixture[str]) -> None:
    node = "a\x1b[2J\x9b\u202eb"
    print_result({"node": node}, False, f"node {node}", table(node, (node,), [(node,)]))
    print_result({"node": node}, True)
    note(node)
    printed = capsys.readouterr()
    for one in "\x1b\x9b\u202e":
        assert one not in printed.out + printed.err
    assert json.loads(printed.out.splitlines()[-1]) == {"node": node}
