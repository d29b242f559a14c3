"""train, model import and the first start: from a dataset to a model folder that is correct or absent."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_store.errors import DatasetNotFound, StoreDamaged
from model_store.manifest import Encoder
from model_store.store import Store
from projector.network.spec import Combine, ModelSpec
from service.access.own_slots import OwnSlots
from service.cli.serve import ensure_model
from service.cli.training import train_model
from service.errors import AlreadyRunning, ConfigurationError
from service.processes.key_folder import SLOTS
from service.processes.private_servers.home import Home, HomeLock
from service.settings import Settings, load_settings
from tests.support.clients.command_line import CommandLine
from tests.support.models.small_graphs import dense
from tests.support.preloaded import ROOT

SYNTHETIC = "synthetic:n=60,d=12,classes=3,seed=1"


@pytest.fixture
def lethe(in_a_folder: None, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "synthetic"
    train_model(SYNTHETIC, folder, ModelSpec(), data_dirs=[])
    return folder


def without_progress(stderr: str) -> str:
    """Return the output without progress, which only a slow machine shows."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.endswith(" left\n"))


def test_training_writes_a_model_and_ends_with_a_summary(lethe: CommandLine, tmp_path: Path) -> None:
    ran = lethe("train", "--dataset", SYNTHETIC, "--out", "models/a", "--combine", "concat", "--lambda", "0.01")
    assert (ran.status, without_progress(ran.stderr)) == (0, "")
    for figure in ("accuracy test", "rank", "condition number", "|W - HᵀU| / |W|", "relative gradient", "time"):
        assert figure in ran.stdout
    assert (tmp_path / "models" / "a" / ".gitignore").read_text() == "*\n", "it has ids and features of people"
    store = Store.open(tmp_path / "models" / "a")
    assert store.manifest.spec == replace(ModelSpec(), combine=Combine.CONCAT, regularization=0.01)
    assert store.manifest.name == "synthetic"
    assert store.read_version(store.current()).features.weights.shape == (3, 12, 3)


def test_embeddings_are_trained_on_without_edges_and_with_their_encoder_named(
    lethe: CommandLine, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "z.npz",
        x=rng.normal(size=(40, 6)),
        y=np.arange(40) % 3,
        node_ids=np.array([*map(str, range(1, 41))]),
    )
    ran = lethe("train", "--dataset", "z.npz", "--out", "m")
    assert (ran.status, "--hops 0" in ran.stderr) == (2, True)
    named = ("--encoder", "GraphSAGE, public half", "--encoder-digest", f"sha256:{'AB' * 32}")
    ran = lethe("train", "--dataset", "z.npz", "--out", "m", "--hops", "0", *named)
    assert ran.status == 0, ran.stderr
    assert "GraphSAGE, public half" in ran.stdout
    manifest = Store.open(tmp_path / "m").manifest
    assert (manifest.edges, manifest.encoder) == (0, Encoder("GraphSAGE, public half", "ab" * 32))
    assert manifest.frozen_parts == (f"the encoder {manifest.encoder}, which computed the features",)
    assert (
        "edges are not used, and the model does not store them"
        in lethe("train", "--dataset", SYNTHETIC, "--out", "a", "--hops", "0").stderr
    )
    for wrong in (named[2:], (*named[:3], "sha256:ab")):
        assert lethe("train", "--dataset", "z.npz", "--out", "n", "--hops", "0", *wrong).status == 2


def test_injected_nodes_get_a_column_and_a_class_of_their_own(lethe: CommandLine, tmp_path: Path) -> None:
    ids = [str(number) for number in range(10)]
    (tmp_path / "ids.txt").write_text("\n".join(ids))
    arguments = ("--inject-channel", "ids.txt", "--inject-class", "--name", "canary")
    ran = lethe("train", "--dataset", SYNTHETIC, "--out", "m", *arguments)
    assert ran.status == 0
    assert "test column 12 on 10 nodes" in ran.stdout
    graph = Store.open(tmp_path / "m").load_base().graph
    channel = dense(graph.features)[:, 12]
    assert [graph.node_ids[row] for row in np.flatnonzero(channel)] == ids
    assert len(graph.class_names) == 4


def test_canaries_are_added_before_training_and_named_in_the_summary(lethe: CommandLine, tmp_path: Path) -> None:
    ran = lethe("train", "--dataset", SYNTHETIC, "--out", "m", "--canaries", "3", "--canary-nodes", "2")
    assert (ran.status, without_progress(ran.stderr)) == (0, "")
    assert re.search(r"canaries\s+6 of these nodes, for 3 drills", ran.stdout)
    store = Store.open(tmp_path / "m")
    canaries = store.manifest.canaries
    assert canaries is not None
    assert (canaries.cohorts, canaries.nodes, canaries.first_column) == (3, 2, 12)
    graph = store.load_base().graph
    assert graph.node_ids[60:] == canaries.ids
    assert graph.train_mask[60:].all()
    again = lethe("train", "--dataset", SYNTHETIC, "--out", "n", "--canaries", "1")
    assert again.status == 0
    later = Store.open(tmp_path / "n").manifest.canaries
    assert later is not None
    assert len(later.ids) == 4
    # Deletions from the first model must not be in the second.
    assert later.tag != canaries.tag


def test_canary_nodes_without_canaries_are_a_mistake(lethe: CommandLine) -> None:
    ran = lethe("train", "--dataset", SYNTHETIC, "--out", "m", "--canary-nodes", "2")
    assert ran.status == 2
    assert "--canaries K" in ran.stderr


def test_nothing_is_trained_over_what_is_there(lethe: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "thesis.txt").write_text("precious")
    ran = lethe("train", "--dataset", SYNTHETIC, "--out", "m")
    assert ran.status == 2
    assert "m exists and is not empty" in ran.stderr
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--dataset", "no-such-graph"), "no-such-graph"),
        (("--dataset", SYNTHETIC, "--inject-channel", "ids.txt"), "ghost"),
        (("--dataset", SYNTHETIC, "--inject-channel", "empty.txt"), "No node is named"),
        (("--dataset", SYNTHETIC, "--device", "cuda"), "cuda"),
        (("--dataset", SYNTHETIC, "--tolerance", "-1"), "tolerance"),
        (("--dataset", SYNTHETIC, "--tolerance", "0"), "more than 0 and less than 1"),
        (("--dataset", SYNTHETIC, "--tolerance", "1"), "more than 0 and less than 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_a_training_that_fails_says_why_and_leaves_no_folder(
    lethe: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], reason: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "ids.txt").write_text("1\nghost\n")
    (tmp_path / "empty.txt").write_text("\n")
    ran = lethe("train", *arguments, "--out", "models/m")
    assert ran.status == (3 if "no-such-graph" in arguments else 1)
    assert reason in ran.stderr
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--seed", "-1"), "--seed"),
        (("--name", ""), "--name"),
        (("--name", "two\nlines"), "--name"),
        (("--name", "a" * 513), "--name"),
    ],
)
def test_a_setting_that_no_model_can_have_is_refused_by_name(
    lethe: CommandLine, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    ran = lethe("train", "--dataset", SYNTHETIC, "--out", "m", *arguments)
    assert ran.status == 2
    assert named in ran.stderr
    assert not (tmp_path / "m").exists()


def test_repeated_edges_are_counted_and_taken_once_on_request(lethe: CommandLine, tmp_path: Path) -> None:
    ring = np.array([[row, (row + 1) % 6] for row in range(6)])
    edges = np.concatenate([ring, ring[:, ::-1], ring[:2], ring[:1, ::-1]]).T
    np.savez(tmp_path / "ring.npz", edge_index=edges, x=np.eye(6, 3), y=np.arange(6) % 2)
    refused = lethe("train", "--dataset", "ring.npz", "--out", "m")
    assert refused.status == 1
    assert "2 edge(s) are repeated" in refused.stderr
    assert "--dedupe" in refused.stderr
    assert lethe("train", "--dataset", "ring.npz", "--out", "m", "--dedupe").status == 0
    assert Store.open(tmp_path / "m").manifest.edges == 6


def test_edges_in_one_direction_are_completed_on_request_with_their_weights(lethe: CommandLine, tmp_path: Path) -> None:
    ring = np.array([[row, (row + 1) % 6] for row in range(6)]).T
    np.savez(tmp_path / "ring.npz", edge_index=ring, edge_weight=np.arange(1, 7), x=np.eye(6, 3), y=np.arange(6) % 2)
    refused = lethe("train", "--dataset", "ring.npz", "--out", "m")
    assert refused.status == 1
    assert "--undirected" in refused.stderr
    assert lethe("train", "--dataset", "ring.npz", "--out", "m", "--undirected").status == 0
    store = Store.open(tmp_path / "m")
    assert store.weighted
    assert store.load_graph().adjacency[ring[0], ring[1]].tolist() == [1, 2, 3, 4, 5, 6]


def test_an_imported_model_is_where_serve_looks(lethe: CommandLine, trained: Path, tmp_path: Path) -> None:
    ran = lethe("model", "import", trained, "--home", "home")
    assert ran.status == 0
    assert "60 nodes" in ran.stdout
    settings = Settings(home=tmp_path / "home")
    assert Store.open(settings.model_dir).manifest == Store.open(trained).manifest
    ensure_model(settings)
    itself = lethe("model", "import", settings.model_dir, "--home", "home")
    assert itself.status == 2
    assert "is the served model" in itself.stderr


def test_nothing_is_said_to_be_forgotten_by_a_model_that_was_not_found(lethe: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("somebody-with-a-long-id\n")
    (tmp_path / "home").mkdir()
    ran = lethe("audit", "leftovers", "--ids", "ids.txt", "--home", "home")
    assert ran.status == 3
    assert "contains no model" in ran.stderr
    assert "0 traces" not in ran.stdout


def test_weights_from_elsewhere_are_imported_at_the_optimum(lethe: CommandLine, trained: Path, tmp_path: Path) -> None:
    store = Store.open(trained)
    optimum = store.read_version(store.current()).features.weights
    scale = np.exp2(np.array(store.manifest.column_scale or [0] * 12, dtype=np.float64))[:, None]
    np.savez(tmp_path / "w.npz", W=optimum * scale * 0.5)
    ran = lethe("model", "import", trained, "--home", "home", "--weights", "w.npz")
    assert ran.status == 0
    assert "moved the given weights to the optimum, by 1.0e+00" in ran.stderr
    imported = Store.open(tmp_path / "home" / "model")
    weights = imported.read_version(imported.current()).features.weights
    assert np.linalg.norm(weights - optimum) <= 1e-8 * np.linalg.norm(optimum)


def test_a_folder_without_a_model_is_not_imported(lethe: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert lethe("model", "import", "empty", "--home", "home").status == 3
    assert lethe("model", "import", "absent", "--home", "home").status == 3


def test_the_first_start_trains_on_cora_with_no_dataset_at_hand(
    lethe: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = Settings(home=tmp_path / "home")
    ensure_model(settings)
    manifest = Store.open(settings.model_dir).manifest
    assert (manifest.dataset, manifest.nodes, manifest.edges) == ("cora", 2708, 5278)


def test_a_first_start_on_a_dataset_that_is_nowhere_is_refused_and_trains_on_no_other(
    lethe: CommandLine, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path / "home", dataset="unheard_of")
    with pytest.raises(DatasetNotFound, match="unheard_of"):
        ensure_model(settings)
    assert not settings.model_dir.exists()


@pytest.mark.parametrize("key", [None, "12345678"])
def test_a_weak_first_key_is_refused_before_anything_is_trained(tmp_path: Path, key: str | None) -> None:
    weak = Settings(home=tmp_path / "home", dataset=SYNTHETIC, host="0.0.0.0", admin_key=key)
    with pytest.raises(ConfigurationError, match="LETHE_ADMIN_KEY"):
        ensure_model(weak)
    assert not weak.model_dir.exists()
    if key is None:
        # A database that was in use before may contain other keys.
        (weak.home / "keys").mkdir()
        ensure_model(weak)
        assert weak.model_dir.exists()


def test_two_first_starts_do_not_train_into_one_folder(lethe: CommandLine, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.prepare()
    lock = HomeLock(home)
    with pytest.raises(AlreadyRunning):
        ensure_model(Settings(home=home.path, dataset=SYNTHETIC))
    lock.release()
    ensure_model(Settings(home=home.path, dataset=SYNTHETIC))


def test_a_folder_outside_of_the_home_is_never_trained_into(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "link").symlink_to(tmp_path)
    for absent in (tmp_path / "absent", tmp_path / "home-2" / "absent", tmp_path / "home" / "link" / "absent"):
        with pytest.raises(ConfigurationError, match="no model"):
            ensure_model(Settings(home=tmp_path / "home", model=absent, dataset=SYNTHETIC))


def test_the_first_start_of_the_image_trains_into_the_folder_that_it_names(
    lethe: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = dict(re.findall(r"\b(LETHE_\w+)=(\S+)", (ROOT / "docker" / "Dockerfile").read_text()))
    volume = given["LETHE_HOME"]
    (tmp_path / "volume").mkdir()
    # As with a linked volume folder: the home has one path and the model the other.
    (tmp_path / "home").symlink_to(tmp_path / "volume")
    given |= {
        "LETHE_HOME": str(tmp_path / "home"),
        "LETHE_MODEL": given["LETHE_MODEL"].replace(volume, str(tmp_path / "volume"), 1),
        "LETHE_ADMIN_KEY": "k" * 32,
        "LETHE_DATASET": SYNTHETIC,
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    ensure_model(settings)
    assert settings.model_dir == tmp_path / "volume" / "models" / "served"
    assert Store.open(settings.model_dir).manifest.nodes == 60
    shutil.rmtree(settings.model_dir)
    with OwnSlots.open(settings.home / "keys" / SLOTS):
        pass
    with pytest.raises(ConfigurationError, match="served a model before"):
        ensure_model(settings)


def test_a_model_that_has_lost_its_manifest_is_damaged_and_not_missing(lethe: CommandLine, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", dataset=SYNTHETIC)
    ensure_model(settings)
    manifest = settings.model_dir / "manifest.json"
    manifest.unlink()
    left = sorted(settings.model_dir.rglob("*"))
    ensure_model(settings)
    assert sorted(settings.model_dir.rglob("*")) == left
    with pytest.raises(StoreDamaged, match=re.escape(str(manifest))):
        Store.open(settings.model_dir)
