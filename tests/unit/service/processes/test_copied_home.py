"""A copied LETHE_HOME does not start beside its original; a moved or restored home does."""

import shutil
from pathlib import Path

import pytest

from service.errors import StateMismatch
from service.log.signing_keys import LogKeys
from service.processes.key_folder import require_original


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A used home."""
    return used(tmp_path / "home")


def used(home: Path) -> Path:
    LogKeys.open(home / "keys")
    require_original(home)
    return home


def test_a_copy_is_refused_until_its_original_is_gone(home: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(home, tmp_path / "copy")
    for _ in range(2):
        with pytest.raises(StateMismatch, match=f"{copy} is a copy of {home}") as refused:
            require_original(copy)
    assert str(home) in refused.value.remedy
    require_original(home)
    home.rename(tmp_path / "away")
    require_original(copy)


def test_a_home_that_was_moved_goes_on(home: Path, tmp_path: Path) -> None:
    moved = home.rename(tmp_path / "moved")
    require_original(moved)
    require_original(moved.rename(home))


def test_a_backup_put_back_over_its_original_goes_on_and_the_original_does_not(home: Path, tmp_path: Path) -> None:
    backup = shutil.copytree(home, tmp_path / "backup")
    away = home.rename(tmp_path / "away")
    shutil.copytree(backup, home)
    require_original(home)
    with pytest.raises(StateMismatch, match=f"{away} is a copy of {home}"):
        require_original(away)


def test_a_home_seen_under_another_path_goes_on(home: Path, tmp_path: Path) -> None:
    moved = home.rename(tmp_path / "moved")
    home.symlink_to(moved)
    require_original(moved)
