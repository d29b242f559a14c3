"""model list, show and export of a home that is stopped, with its database."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from projector import ModelSpec, load_exported
from projector.network.spec import ClassWeight
from service.cli.training import TrainingOptions, train_model
from service.processes.listening import ServerFacts
from tests.support.clients.command_line import CommandLine
from tests.support.clients.lethe_stub import LetheStub


@pytest.fixture
def lethe(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    empty_database_url: str,
    redis_url: str,
) -> CommandLine:
    monkeypatch.setenv("LETHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    spec = ModelSpec(hops=0, class_weight=ClassWeight.BALANCED)
    options = TrainingOptions(name="shown", encoder="SAGE", encoder_sha256="ab" * 32)
    train_model("synthetic:n=60,d=12,classes=3,seed=1", tmp_path / "home" / "model", spec, options, data_dirs=[])
    return CommandLine(capsys)


def test_a_home_lists_shows_and_exports_its_model(lethe: CommandLine, tmp_path: Path) -> None:
    [listed] = json.loads(lethe("model", "list", "--json").stdout)["models"]
    assert {"model": "shown", "version": 0, "live_nodes": 60, "loss": "softmax", "guarantee": "span"}.items() <= (
        listed.items()
    )
    assert "shown" in lethe("model", "list").stdout
    shown = json.loads(lethe("model", "show", "--json").stdout)
    assert shown["encoder"] == {"name": "SAGE", "sha256": "ab" * 32}
    assert [part.partition(",")[0] for part in shown["frozen_parts"]] == [
        f"the encoder SAGE (SHA-256 {'ab' * 32})",
        "the weights of the classes in the loss",
    ]
    assert (shown["edges"], shown["live_nodes"], shown["settings"]["class_weight"]) == (0, 60, "balanced")
    folder = tmp_path / "home" / "model"
    assert shown["bytes"]["all"] == sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
    assert "encoder SAGE" in lethe("model", "show").stdout

    refused = lethe("model", "export", "w.npz")
    assert refused.status != 0
    assert "--exact" in refused.stderr
    assert not (tmp_path / "w.npz").exists()
    done = lethe("model", "export", "w.npz", "--exact")
    assert done.status == 0, done.stderr
    assert "reveal more" in done.stderr
    assert (tmp_path / "w.npz").stat().st_mode & 0o777 == 0o600
    assert load_exported(tmp_path / "w.npz").weights.shape == (1, 12, 3)
    assert lethe("model", "export", "w.npz", "--exact").status != 0


def test_while_lethe_runs_its_own_figures_are_shown(lethe: CommandLine, tmp_path: Path) -> None:
    run, model = tmp_path / "home" / "run", tmp_path / "home" / "model"
    run.mkdir()
    (run / "admin.key").write_text("lethe_key")
    answer = {
        "name": "shown", "version": 7, "nodes": 60, "live_nodes": 58, "edges": 0, "features": 12, "classes": ["0", "1"],
        "hops": 0, "combine": "last", "loss": "softmax", "rank": 12, "device": "cpu", "weights_sha256": "ab",
        "lambda": 1e-4, "distance_bound_relative": 1e-10, "guarantee": "retrained",
    }  # fmt: skip
    with LetheStub({("GET", "/model"): (200, answer)}) as stub:
        facts = ServerFacts(os.getpid(), stub.url, str(model), datetime.now(UTC), {})
        (run / "server.json").write_bytes(msgspec.json.encode(facts))
        shown = json.loads(lethe("model", "show", "--json").stdout)
    assert (shown["version"], shown["live_nodes"], shown["distance_bound_relative"]) == (7, 58, 1e-10)
    assert (shown["lambda"], shown["guarantee"], shown["folder"]) == (1e-4, "retrained", str(model))
    assert len(shown["frozen_parts"]) == 2
