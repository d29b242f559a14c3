"""Versions of a store: written once, committed in order, and never removed by an overtaken process."""

import shutil
from pathlib import Path

import pytest

from model_store import current as current_module
from model_store.base.erasure import Erasure
from model_store.disk import durable
from model_store.errors import StoreDamaged
from model_store.store import Store
from model_store.versions import StoreConflict, VersionRef
from tests.support.models.store_models import small_model
from tests.support.models.store_states import a_state, everything_of, same_state

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_versions_are_read_back_and_digests_checked(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    state = a_state(model, 4)
    digest = store.write_version(VersionRef(1, 3), state, edges=0)
    assert digest == store.version_digest(VersionRef(1, 3))
    assert same_state(store.read_version(VersionRef(1, 3), digest=digest), state)
    assert store.current() == VersionRef(0, 0)
    with pytest.raises(StoreDamaged, match=r"1-3/manifest\.json does not have the expected digest"):
        store.read_version(VersionRef(1, 3), digest="0" * 64)
    with pytest.raises(StoreDamaged, match=r"2-3/manifest\.json is missing"):
        store.read_version(VersionRef(2, 3))


def test_a_committed_version_is_not_written_over(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    store.write_version(VersionRef(1, 1), a_state(model, 1), edges=0)
    store.set_current(VersionRef(1, 1))
    for ref in (VersionRef(1, 1), VersionRef(0, 5)):
        with pytest.raises(StoreConflict, match="not later than 1-1"):
            store.write_version(ref, a_state(model, 2), edges=0)
    assert same_state(store.read_version(VersionRef(1, 1)), a_state(model, 1))


def test_current_moves_forward_only_and_only_to_what_is_there(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    with pytest.raises(StoreDamaged, match="1-1"):
        store.set_current(VersionRef(1, 1))
    store.write_version(VersionRef(1, 1), a_state(model, 1), edges=0)
    store.write_version(VersionRef(2, 1), a_state(model, 2), edges=0)
    store.set_current(VersionRef(2, 1))
    store.set_current(VersionRef(2, 1))
    with pytest.raises(StoreConflict, match="2-1, which is later than 1-1"):
        store.set_current(VersionRef(1, 1))
    assert Store.open(tmp_path / "m").current() == VersionRef(2, 1)


def test_versions_above_ones_own_fencing_number_are_never_removed(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    for ref in (VersionRef(1, 1), VersionRef(2, 2), VersionRef(2, 3), VersionRef(3, 4)):
        store.write_version(ref, a_state(model, ref.fencing), edges=0)
    for name in (".tmp-2-2", ".tmp-4-4"):
        (tmp_path / "m" / "versions" / name).mkdir()
        (tmp_path / "m" / "versions" / name / "state.safetensors").write_bytes(b"unfinished")
    store.set_current(VersionRef(2, 2))
    removed = store.remove_versions(keep=VersionRef(2, 2), below_fencing=3)
    assert removed == [VersionRef(0, 0), VersionRef(1, 1), VersionRef(2, 3)]
    left = sorted(path.name for path in (tmp_path / "m" / "versions").iterdir())
    assert left == [".tmp-4-4", "2-2", "3-4"]
    assert store.remove_versions(keep=VersionRef(2, 2), below_fencing=3) == []


def test_nothing_is_removed_when_current_names_another_version(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    store.write_version(VersionRef(1, 1), a_state(model, 1), edges=0)
    with pytest.raises(StoreConflict, match="CURRENT names version 0-0, not 1-1"):
        store.remove_versions(keep=VersionRef(1, 1), below_fencing=1)
    assert store.versions() == [VersionRef(0, 0), VersionRef(1, 1)]


@pytest.mark.parametrize("caught_at", ["write_file", "rename"])
def test_a_writer_that_was_overtaken_while_it_set_current_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caught_at: str
) -> None:
    """It pauses just before it writes, or renames, the next CURRENT; its successor continues."""
    model = small_model()
    slow = model.create(tmp_path / "m")
    slow.write_version(VersionRef(1, 1), a_state(model, 1), edges=0)
    step = getattr(current_module, caught_at)

    def overtaken(*arguments: object) -> None:
        monkeypatch.setattr(current_module, caught_at, step)
        successor = Store.open(tmp_path / "m")
        successor.set_current(VersionRef(1, 1))
        successor.write_version(VersionRef(2, 2), a_state(model, 2), edges=0)
        successor.set_current(VersionRef(2, 2))
        step(*arguments)

    monkeypatch.setattr(current_module, caught_at, overtaken)
    with pytest.raises(StoreConflict, match="CURRENT names version 2-2, which is later than 1-1"):
        slow.set_current(VersionRef(1, 1))
    assert Store.open(tmp_path / "m").current() == VersionRef(2, 2)
    assert not list((tmp_path / "m").glob(".*"))


def test_current_stays_when_one_that_was_overtaken_sets_it_in_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked at CURRENT before its successor wrote it, and renames its own right after."""
    model = small_model()
    store = model.create(tmp_path / "m")
    for version in (1, 2):
        store.write_version(VersionRef(version, version), a_state(model, version), edges=0)
    store.set_current(VersionRef(1, 1))
    late = tmp_path / "m" / ".CURRENT-1-1"
    late.write_bytes((tmp_path / "m" / "CURRENT").read_bytes())

    def rename(source: Path, target: Path) -> None:
        monkeypatch.setattr(current_module, "rename", durable.rename)
        durable.rename(source, target)
        durable.rename(late, target)

    monkeypatch.setattr(current_module, "rename", rename)
    store.set_current(VersionRef(2, 2))
    assert store.current() == VersionRef(2, 2)


def test_what_an_overtaken_writer_has_written_since_is_removed(tmp_path: Path) -> None:
    model = small_model()
    slow = model.create(tmp_path / "m")
    store = Store.open(tmp_path / "m")
    store.write_version(VersionRef(1, 2), a_state(model, 1), edges=0)
    store.set_current(VersionRef(1, 2))
    store.write_beta(model.beta, model.label_beta, version=1, fencing=2)
    store.erase(Erasure(), fencing=2, keep=VersionRef(1, 2))
    before = everything_of(tmp_path / "m")
    shutil.copytree(tmp_path / "m" / "versions" / "1-2", tmp_path / "m" / "versions" / "1-1")
    with pytest.raises(StoreConflict):
        slow.write_beta(model.beta, model.label_beta, version=1, fencing=1)
    for name in ("base/index-1-1.json", "base/beta.values-1-1", ".tombstones-1"):
        (tmp_path / "m" / name).write_bytes(b"late")
    assert everything_of(tmp_path / "m") != before

    store.tidy(keep=VersionRef(1, 2), fencing=2)
    assert everything_of(tmp_path / "m") == before
