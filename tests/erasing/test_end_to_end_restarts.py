"""Lethe started, stopped, killed and restarted on its own servers, and started on a damaged model."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.models.trained_models import SMALL, Models
from tests.support.preloaded import ROOT, Start, fresh
from tests.support.processes.lethe_process import LetheProcess, copied
from tests.support.service.homes import digests

pytestmark = pytest.mark.ci


@pytest.fixture
def own(tmp_path: Path, lethe_start: Start) -> Iterator[Callable[..., LetheProcess]]:
    """A Lethe with private servers, not started."""
    made: list[LetheProcess] = []

    def make(**settings: Any) -> LetheProcess:
        home = tmp_path / "own"
        home.mkdir(mode=0o700)
        made.append(LetheProcess(lethe_start, home, **settings))
        return made[-1]

    yield make
    for lethe in made:
        lethe.close()


def cloned(folder: Path) -> Path:
    """Copy what a clone contains to `folder`, set up as by the launcher but with this environment's packages."""
    unversioned = shutil.ignore_patterns(".*", "var", "data", "__pycache__")
    shutil.copytree(ROOT, folder, ignore=unversioned)
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    served = ("requirements.txt", "requirements-downloads.txt", "requirements-tables.txt")
    (folder / ".venv" / "installed").write_text("".join((folder / name).read_text() for name in served))
    return folder


@pytest.mark.slow
def test_a_fresh_clone_serves_cora_after_one_command_and_a_second_start_serves_the_same_model(tmp_path: Path) -> None:
    clone = cloned(tmp_path / "clone")
    lethe = LetheProcess(fresh(str(clone / "lethe")), clone / "var", admin_key="", repair="")
    with lethe:
        lethe.start()
        assert "There is no model yet. Training on" in lethe.log()
        key_file = lethe.home / "run" / "admin.key"
        assert str(key_file) in lethe.printed
        assert f"{lethe.url}/docs" in lethe.printed
        with lethe.client(key_file.read_text().strip()) as client:
            trained = client.model()
            assert (trained.name, trained.nodes, trained.edges) == ("cora", 2708, 5278)
            assert client.wait(client.request_deletion(["7"]).id).audit is not None
            model, prediction = client.model(), client.predict("8")
        stored = digests(lethe.model)
        ended = lethe.stop()
        assert (ended.status, "[error" in ended.stderr) == (0, False), ended.stderr

        lethe.start()
        assert "Training" not in lethe.log()
        assert "API key" not in lethe.printed
        with lethe.client(key_file.read_text().strip()) as client:
            assert (client.model(), client.predict("8")) == (model, prediction)
            assert client.predict_many(["7"]).deleted == ["7"]
        assert digests(lethe.model) == stored
        assert lethe.stop().status == 0


def refused_by_name(lethe: LetheProcess, file: Path) -> None:
    """Check that it ends with status 1 at its first attempt, names the file and the remedy, and changes nothing."""
    before = digests(lethe.model)
    lethe.launch()
    ended = lethe.ended()
    assert ended.status == 1, ended.stderr
    assert f"error: {file}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "unlearner.failed" not in ended.stderr
    assert "Lethe is ready" not in ended.stdout
    assert digests(lethe.model) == before


def damage(file: Path) -> None:
    """Change one bit in the middle of a file, or add a byte to an empty one."""
    content = bytearray(file.read_bytes() or b"\1")
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.fixture
def unstarted(tmp_path: Path, lethe_start: Start, models: Models, database_url: str, redis_url: str) -> LetheProcess:
    """A Lethe on a copy of the small model and the session's servers."""
    lethe = LetheProcess(lethe_start, tmp_path / "home", database_url=database_url, redis_url=redis_url)
    lethe.home.mkdir()
    copied(models.trained(SMALL), lethe.model)
    return lethe


def test_a_damaged_model_is_refused_by_the_name_of_the_file(unstarted: LetheProcess) -> None:
    (file,) = unstarted.model.glob("base/features.values*")
    damage(file)
    refused_by_name(unstarted, file)


@pytest.mark.slow
def test_every_file_of_a_model_is_refused_by_name_when_it_is_damaged_cut_or_missing(
    unstarted: LetheProcess,
) -> None:
    # Lethe never reads .gitignore, so it does not notice damage to it.
    files = sorted(path for path in unstarted.model.rglob("*") if path.is_file() and path.name != ".gitignore")
    assert len(files) > 10
    for file in files:
        whole = file.read_bytes()
        damage(file)
        refused_by_name(unstarted, file)
        if whole:
            file.write_bytes(whole[: len(whole) // 2])
            refused_by_name(unstarted, file)
        file.unlink()
        # It is unknown which index is missing.
        refused_by_name(unstarted, file.with_name("index") if file.name.startswith("index-") else file)
        file.write_bytes(whole)
    unstarted.start()
    unstarted.close()
