"""A publication on the disk: complete or absent, blanked, and overwritten before removal."""

import errno
import mmap
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.versions import VersionRef
from service.domain.snapshot import Snapshot
from service.errors import LeaseLost, Unavailable
from service.predictions import facts as publication_facts
from service.predictions import layout as layouts
from service.predictions import mapped, writer
from service.predictions.facts import PublicationDamaged, read_checksums, with_checksum
from service.predictions.heads import Heads
from service.predictions.layout import MANIFEST, Layout
from service.predictions.writer import Publisher
from tests.support.service import publications
from tests.support.service.publications import admitted, knows, view_of

IDS = ("ann@x", "bob@x", "cid@x", "dan@x", "eve@x")
EDGES = ((0, 1), (1, 2), (2, 3), (3, 4))
REF = VersionRef(1, 1)
NO_EDGES = np.empty((0, 2), dtype=np.int64)


def snapshot(version: int, *dead: int) -> Snapshot:
    return publications.snapshot(version, np.tile([0.125, 0.875], (len(IDS), 1)), EDGES, dead)


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    publisher = Publisher(tmp_path, tmp_path / "share")
    load(publisher, 1)
    return publisher


def load(publisher: Publisher, version: int, *dead: int, fencing: int = 1) -> None:
    shown = snapshot(version, *dead)
    model = publications.published_model(IDS, shown)
    publications.load(publisher, VersionRef(version, 1), model, shown, fencing)


def write(publisher: Publisher, version: int, *dead: int, fencing: int = 1) -> VersionRef:
    shown, ref = snapshot(version, *dead), VersionRef(version, fencing)
    publisher.write(ref, shown, publications.version_facts(shown), of=VersionRef(version - 1, 1))
    return ref


def first(publisher: Publisher) -> Path:
    """The path of the first version."""
    return publications.folder_of(publisher, REF)


def place(publisher: Publisher) -> Layout:
    return publications.layout_of(publisher)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def all_bytes(publisher: Publisher) -> bytes:
    return b"".join(path.read_bytes() for path in place(publisher).path.rglob("*") if path.is_file())


def test_everything_is_for_its_owner_alone_and_the_home_names_it(publisher: Publisher, tmp_path: Path) -> None:
    assert Layout.all_of(tmp_path) == [place(publisher)]
    assert place(publisher).path.parent == tmp_path / "share"
    for path in (place(publisher).path, *place(publisher).path.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0
    assert (tmp_path / "run" / "publications").stat().st_mode & 0o077 == 0


def test_what_this_session_has_written_is_not_written_again_and_what_another_has_is(publisher: Publisher) -> None:
    before = place(publisher)
    load(publisher, 1)
    assert place(publisher) == before
    load(publisher, 1, fencing=2)
    assert place(publisher) != before
    assert place(publisher).fencing == 2


def test_a_later_session_publishes_anew_and_removes_what_earlier_ones_left(
    publisher: Publisher, tmp_path: Path
) -> None:
    load(Publisher(tmp_path, tmp_path / "share"), 1, fencing=3)
    later = Publisher(tmp_path, tmp_path / "share")
    assert later.highest_fencing() == 3
    load(later, 1, 3, fencing=7)
    assert [one.fencing for one in Layout.all_of(tmp_path)] == [7, 3, 1]
    reader = admitted(tmp_path)
    assert [knows(reader, node) for node in IDS] == [True, True, True, False, True]
    later.remove_older(REF)
    assert names(tmp_path / "share") == {place(later).path.name}
    assert Layout.all_of(tmp_path) == [place(later)]


def test_numbers_of_publications_count_where_entries_were_lost(publisher: Publisher, tmp_path: Path) -> None:
    load(publisher, 1, fencing=9)
    Heads(tmp_path).clear()
    assert Publisher(tmp_path).highest_fencing() == 9


def test_parts_that_do_not_fit_are_refused(publisher: Publisher, tmp_path: Path) -> None:
    shown = snapshot(2)
    facts = publications.version_facts(shown)
    for ids, classes in ((IDS[:4], ("red", "green")), (IDS, ("only",))):
        with pytest.raises(ValueError, match="do not fit"):
            publisher.write(
                VersionRef(2, 1), shown, facts, of=publications.published_model(ids, shown, classes=classes)
            )
    dead = publications.published_model(IDS, shown)
    with pytest.raises(ValueError, match="live nodes"):
        publisher.write(VersionRef(2, 1), snapshot(2, 0), facts, of=dead)
    assert names(place(publisher).versions) == {first(publisher).name}
    assert Layout.all_of(tmp_path) == [place(publisher)]


def test_another_attempt_at_a_version_replaces_the_one_before(publisher: Publisher) -> None:
    write(publisher, 2, 0)
    ref = write(publisher, 2, 1)
    assert view_of(publisher, ref).live.tolist() == [True, False, True, True, True]
    assert names(place(publisher).versions) == {first(publisher).name, publications.folder_of(publisher, ref).name}


def test_a_full_disk_is_an_error_and_leaves_nothing(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.write

    def full(descriptor: int, data: bytes) -> int:
        if b"live_nodes" in bytes(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        return really(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        write(publisher, 2, 0)
    shown = snapshot(2)
    imported = publications.published_model(IDS, shown)
    with pytest.raises(OSError, match="No space left"):
        publisher.write(VersionRef(2, 1), shown, publications.version_facts(shown), of=imported)
    assert names(place(publisher).versions) == {first(publisher).name}
    assert names(tmp_path / "share") == {place(publisher).path.name}
    assert Layout.all_of(tmp_path) == [place(publisher)]


def test_what_is_erased_is_in_no_file_and_what_stays_is_found(publisher: Publisher, tmp_path: Path) -> None:
    reader = admitted(tmp_path)
    ref = write(publisher, 2, 1, 4)
    assert publisher.show(ref, 1)
    for _ in range(2):
        publisher.erase(ref, np.array([1, 4]), np.array([[3, 2]]))
        publisher.remove_older(ref)
        found = all_bytes(publisher)
        assert [name.encode() in found for name in IDS] == [True, False, True, True, False]
        assert [knows(reader, node) for node in IDS] == [True, False, True, True, False]
        view = view_of(publisher, ref)
        rows = np.array([(first, second) for first in range(5) for second in range(5)])
        # 0 - 1, 1 - 2 and 3 - 4 went with their nodes, 2 - 3 separately.
        assert not view.model.edges.contain(rows).any()
        entries = np.fromfile(view.model.path / "index", dtype=np.int32)
        assert sorted(entries[entries >= 0].tolist()) == [0, 2, 3]


def test_an_erasure_that_was_cut_off_is_ended_by_the_next(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = write(publisher, 2, 1)
    blank, files = writer._blank, ["index", "ids", "edges"]
    for last in files:

        def cut_off(path: Path, *rest: Any, last: str = last) -> None:
            blank(path, *rest)
            if path.name == last:
                raise OSError(errno.EIO, "cut off")

        monkeypatch.setattr(writer, "_blank", cut_off)
        with pytest.raises(OSError, match="cut off"):
            publisher.erase(ref, np.array([1]), NO_EDGES)
    monkeypatch.undo()
    publisher.erase(ref, np.array([1]), NO_EDGES)
    assert b"bob@x" not in all_bytes(publisher)
    assert view_of(publisher, ref).model.edges.contain(np.array(EDGES)).tolist() == [
        False,
        False,
        True,
        True,
    ]


def test_a_version_is_overwritten_before_it_is_removed_also_for_whoever_still_maps_it(publisher: Publisher) -> None:
    view = view_of(publisher, REF)
    live = mapped._map(view.path / "live", len(view.live))
    rows = [view.probabilities.row(row) for row in range(len(IDS))]
    assert np.all(rows)
    assert all(live[:])
    ref = write(publisher, 2)
    publisher.remove_older(ref)
    assert not np.any(rows)
    assert not any(live[:])
    assert names(place(publisher).versions) == {publications.folder_of(publisher, ref).name}


def test_what_a_later_session_wrote_stays(publisher: Publisher, tmp_path: Path) -> None:
    """A session that lost its lease unknowingly removes the publications up to then and nothing else."""
    later = Publisher(tmp_path, tmp_path / "share")
    load(later, 1, fencing=5)
    ref = write(publisher, 2)
    with pytest.raises(LeaseLost):
        publisher.show(ref, 1)
    publisher.remove_older(ref)
    assert [one.fencing for one in Layout.all_of(tmp_path)] == [5, 1]
    assert first(later).exists()
    later.remove_older(REF)
    with pytest.raises(FileNotFoundError):
        write(publisher, 3)
    assert Layout.all_of(tmp_path) == [place(later)]


def test_a_publication_of_which_a_part_is_removed_is_removed_by_the_next(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Publisher(tmp_path, tmp_path / "share")
    load(later, 1, fencing=2)
    really = layouts._overwrite
    for name in ("probabilities", "manifest.json", "ids"):

        def cut_off(path: Path, name: str = name) -> None:
            if path.name == name:
                raise OSError(errno.EIO, "cut off")
            really(path)

        with monkeypatch.context() as patch:
            patch.setattr(layouts, "_overwrite", cut_off)
            with pytest.raises(OSError, match="cut off"):
                later.remove_older(REF)
    later.remove_older(REF)
    assert names(tmp_path / "share") == {place(later).path.name}
    assert Layout.all_of(tmp_path) == [place(later)]


def test_a_share_that_was_lost_is_an_error_until_it_is_written_again(publisher: Publisher, tmp_path: Path) -> None:
    reader = admitted(tmp_path)
    assert knows(reader, "ann@x")
    place(publisher).remove()
    assert not publisher.has(REF, 1)
    assert not publisher.show(REF, 1)
    with pytest.raises(FileNotFoundError):
        write(publisher, 2)
    with pytest.raises(Unavailable):
        admitted(tmp_path).predict_many([])
    load(publisher, 1)
    for one in (reader, admitted(tmp_path)):
        assert one.predict_many(["ann@x"])[0] == 1


def test_a_copy_of_a_home_makes_a_publication_of_its_own(publisher: Publisher, tmp_path: Path) -> None:
    """Otherwise its unlearner would remove the files that the first one's readers use."""
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "run", copy / "run", symlinks=True)
    assert Layout.all_of(copy) == []
    of_copy = Publisher(copy, tmp_path / "share")
    load(of_copy, 1, fencing=2)
    of_copy.remove_older(REF)
    assert Layout.all_of(copy) == [place(of_copy)]
    assert Layout.all_of(tmp_path) == [place(publisher)]


@pytest.mark.parametrize("share", ["elsewhere", "home/run"])
def test_what_a_home_published_before_it_moved_is_its_own(tmp_path: Path, share: str) -> None:
    home = tmp_path / "home"
    load(Publisher(home, tmp_path / share), 1)
    moved = home.rename(tmp_path / "moved")
    share = share.replace("home", "moved")
    assert [one.fencing for one in Layout.all_of(moved)] == [1]
    publisher = Publisher(moved, tmp_path / share)
    load(publisher, 1, fencing=2)
    publisher.remove_older(REF)
    assert {path.name for path in (tmp_path / share).glob("lethe-*")} == {place(publisher).path.name}


def test_what_was_published_from_a_home_in_whose_place_another_is_restored_is_removed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    load(Publisher(home, tmp_path / "share"), 1, fencing=3)
    shutil.copytree(home, tmp_path / "backup", symlinks=True)
    shutil.rmtree(home)
    (tmp_path / "backup").rename(home)
    restored = Publisher(home, tmp_path / "share")
    # Restored entries do not count, but the number does.
    assert (Heads(home).newest(), restored.highest_fencing()) == (None, 3)
    load(restored, 1, fencing=4)
    restored.remove_older(REF)
    assert names(tmp_path / "share") == {place(restored).path.name}


def test_a_folder_that_others_can_write_to_is_none_of_ours(publisher: Publisher, tmp_path: Path) -> None:
    before = place(publisher).path
    before.chmod(0o770)
    assert Layout.all_of(tmp_path) == []
    # The next session still erases it.
    load(publisher, 1, fencing=2)
    publisher.remove_older(REF)
    assert not before.exists()


def test_other_files_beside_the_links_are_ignored(publisher: Publisher, tmp_path: Path) -> None:
    for name in (".DS_Store", "2-notes~", "notes"):
        (place(publisher).link.parent / name).write_text("not a link")
    assert Layout.highest_fencing(tmp_path) == 1
    assert [one.path for one in Layout.all_of(tmp_path)] == [place(publisher).path]


@pytest.mark.parametrize("folder", ["model", "versions"])
def test_a_flipped_byte_is_never_answered_from_and_the_next_start_writes_it_again(
    publisher: Publisher, folder: str
) -> None:
    shown = snapshot(1)
    parts = publications.published_model(IDS, shown), shown, publications.version_facts(shown)

    def harmed() -> Path:
        return place(publisher).model if folder == "model" else first(publisher)

    for fencing, name in enumerate(sorted(names(harmed())), start=2):
        damaged = first(publisher)
        path = harmed() / name
        data = path.read_bytes()
        for at in range(0, len(data), max(1, len(data) // 50)):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            with pytest.raises(PublicationDamaged, match=f"{path.name} is damaged"):
                view_of(publisher, REF).probabilities.row(0)
        publisher.load(REF, *parts, fencing)
        assert first(publisher) != damaged, name
        publisher.remove_older(REF)
        assert view_of(publisher, REF).find("ann@x") == 0


@pytest.mark.parametrize("name", ["edges", "live"])
def test_damage_that_was_found_is_not_read_again_until_the_files_are_written_anew(
    publisher: Publisher, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [path] = place(publisher).path.rglob(name)
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    reader = admitted(tmp_path)
    with pytest.raises(Unavailable, match=f"{name} is damaged"):
        reader.predict_many([])
    with monkeypatch.context() as patch:
        patch.setattr(publication_facts, "of_bytes", lambda data: pytest.fail("It was read again"))
        with pytest.raises(Unavailable, match=f"{name} is damaged"):
            reader.predict_many([])
    load(publisher, 1, fencing=2)
    assert knows(reader, "ann@x")


def test_a_reader_that_meets_an_erasure_looks_again(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    blank, met = writer._blank, list[str]()

    def blanked(path: Path, *rest: Any) -> None:
        blank(path, *rest)
        # A reader from before the erasure has read outdated checksums.
        said = iter([before])
        with monkeypatch.context() as patch:
            patch.setattr(mapped, "read_checksums", lambda folder: next(said, None))
            with pytest.raises(FileNotFoundError, match="is being changed"):
                view_of(publisher, REF)
        # A reader that starts midway cannot check the changing data.
        assert view_of(publisher, REF).live.all()
        met.append(path.name)

    model = place(publisher).model
    before = read_checksums(model)
    monkeypatch.setattr(writer, "_blank", blanked)
    publisher.erase(REF, np.array([1]), NO_EDGES)
    assert met == ["index", "ids", "edges"]
    assert view_of(publisher, REF).find("ann@x") == 0


def test_checksums_that_are_no_checksums_are_damage(publisher: Publisher, tmp_path: Path) -> None:
    path = place(publisher).model / "checksums"
    path.write_bytes(with_checksum(b"{not json"))
    with pytest.raises(Unavailable, match="checksums is damaged"):
        admitted(tmp_path).predict_many([])


def test_a_manifest_that_is_being_overwritten_is_not_there_any_more(publisher: Publisher) -> None:
    folder = first(publisher)
    (folder / MANIFEST).write_bytes(bytes((folder / MANIFEST).stat().st_size))
    with pytest.raises(FileNotFoundError):
        view_of(publisher, REF)


def test_a_share_that_is_wanted_elsewhere_moves_and_the_one_before_goes_once_it_is_not_answered_from(
    publisher: Publisher, tmp_path: Path
) -> None:
    before, reader = place(publisher), admitted(tmp_path)
    assert knows(reader, "ann@x")
    moving = Publisher(tmp_path, tmp_path / "elsewhere")
    load(moving, 1, 0, fencing=2)
    assert Layout.all_of(tmp_path) == [place(moving), before]
    assert place(moving).path.parent == tmp_path / "elsewhere"
    assert not knows(reader, "ann@x")
    moving.remove_older(REF)
    assert Layout.all_of(tmp_path) == [place(moving)]
    assert not before.path.exists()
    assert knows(reader, "bob@x")


@pytest.fixture
def in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(layouts, "_MEMORY", tmp_path / "memory")
    return tmp_path / "memory"


@pytest.mark.parametrize(("kind", "has_room"), [("tmpfs", True), ("ext4", False)])
def test_there_is_no_room_in_memory_where_no_such_file_system_is_mounted(
    in_memory: Path, monkeypatch: pytest.MonkeyPatch, kind: str, has_room: bool
) -> None:
    in_memory.mkdir()
    monkeypatch.setattr(layouts, "kind_of", lambda folder: kind)
    assert layouts._has_room(0) is has_room


def test_a_file_that_was_cut_is_refused_and_never_mapped(publisher: Publisher) -> None:
    path = first(publisher) / "probabilities"
    os.truncate(path, mmap.PAGESIZE // 1024)
    with pytest.raises(OSError, match="instead of"):
        view_of(publisher, REF)


def test_the_highest_number_is_kept_whatever_a_loss_of_power_leaves_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, noted = Publisher(tmp_path), tmp_path / "run" / "highest-version"
    assert publisher.noted == 0
    publisher.note(9)
    before = noted.stat()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", None)
        patch.setattr(Path, "rename", None)
        publisher.note(10)
        publisher.note(3)
    assert publisher.noted == 10
    # The same file at the same length: nothing of it must reach the disk first.
    assert (noted.stat().st_ino, noted.stat().st_size) == (before.st_ino, before.st_size)
