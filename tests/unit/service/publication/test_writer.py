"""What is on the disk of a publication: whole or not there, blanked, overwritten before it is removed."""

import errno
import json
import mmap
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.versions import VersionRef
from service.domain.snapshot import Snapshot
from service.errors import Unavailable
from service.publication import checksums, mapped, writer
from service.publication import layout as layouts
from service.publication.checksums import PublicationDamaged, read_checksums, sealed, unsealed, write_checksums
from service.publication.heads import Heads
from service.publication.layout import MANIFEST, Layout, hidden, written_under
from service.publication.writer import Publisher
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
    """Where the first version is published."""
    return publications.folder_of(publisher, REF)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def all_bytes(publisher: Publisher) -> bytes:
    return b"".join(path.read_bytes() for path in publisher.layout.path.rglob("*") if path.is_file())


def test_everything_is_for_its_owner_alone_and_the_home_names_it(publisher: Publisher, tmp_path: Path) -> None:
    assert Layout.find(tmp_path) == publisher.layout
    assert publisher.layout.path.parent == tmp_path / "share"
    for path in (publisher.layout.path, *publisher.layout.path.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0
    assert (tmp_path / "run" / "publication").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("spoil", ["missing", "altered", "other facts", "other format", "other version", "not shown"])
def test_a_version_that_is_not_whole_is_written_again_and_read_instead(
    publisher: Publisher, spoil: str, tmp_path: Path
) -> None:
    folder = first(publisher)
    if spoil == "missing":
        (folder / MANIFEST).unlink()
    elif spoil == "altered":
        with (folder / "probabilities").open("r+b") as file:
            file.write(b"x")
    elif spoil == "not shown":
        Heads(tmp_path).clear()
    else:
        said = json.loads(unsealed((folder / MANIFEST).read_bytes(), folder))
        other = {"other format": {"format": 1}, "other version": {"name": "1-3"}}
        said |= other.get(spoil, {"facts": {**said["facts"], "rank": 2}})
        (folder / MANIFEST).write_bytes(sealed(json.dumps(said).encode()))
    load(publisher, 1, 3, fencing=7)
    assert first(publisher) != folder
    assert written_under(first(publisher)) == 7
    reader = admitted(tmp_path)
    assert [knows(reader, node) for node in IDS] == [True, True, True, False, True]
    assert reader.facts.served == publications.version_facts(snapshot(1, 3))
    publisher.remove_older(REF, 7)
    assert names(publisher.layout.versions) == {first(publisher).name}
    assert len(names(publisher.layout.models)) == 1


def test_parts_that_do_not_fit_are_refused(publisher: Publisher) -> None:
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
    assert names(publisher.layout.versions) == {first(publisher).name}
    assert len(names(publisher.layout.models)) == 1


def test_another_attempt_at_a_version_replaces_the_one_before(publisher: Publisher) -> None:
    write(publisher, 2, 0)
    ref = write(publisher, 2, 1)
    assert view_of(publisher, ref).live.tolist() == [True, False, True, True, True]
    assert names(publisher.layout.versions) == {first(publisher).name, publications.folder_of(publisher, ref).name}


def test_a_full_disk_is_an_error_and_leaves_nothing(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert names(publisher.layout.versions) == {first(publisher).name}
    assert len(names(publisher.layout.models)) == 1


def test_what_is_erased_is_in_no_file_and_what_stays_is_found(publisher: Publisher, tmp_path: Path) -> None:
    reader = admitted(tmp_path)
    ref = write(publisher, 2, 1, 4)
    assert publisher.show(ref, 1)
    for _ in range(2):
        publisher.erase(ref, np.array([1, 4]), np.array([[3, 2]]), 1)
        publisher.remove_older(ref, 1)
        found = all_bytes(publisher)
        assert [name.encode() in found for name in IDS] == [True, False, True, True, False]
        assert [knows(reader, node) for node in IDS] == [True, False, True, True, False]
        view = view_of(publisher, ref)
        rows = np.array([(first, second) for first in range(5) for second in range(5)])
        # 0 - 1, 1 - 2 and 3 - 4 went with their nodes, 2 - 3 by itself.
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
            publisher.erase(ref, np.array([1]), NO_EDGES, 1)
    monkeypatch.undo()
    publisher.erase(ref, np.array([1]), NO_EDGES, 1)
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
    publisher.remove_older(ref, 1)
    assert not np.any(rows)
    assert not any(live[:])
    assert names(publisher.layout.versions) == {publications.folder_of(publisher, ref).name}


def test_what_an_unlearner_of_a_later_lease_wrote_stays(publisher: Publisher) -> None:
    """One that lost its lease, and does not know, removes what was written until then and nothing else."""
    ref = write(publisher, 2, fencing=5)
    second = publications.folder_of(publisher, ref).name
    later = hidden(publisher.layout.versions / "3-5-01234567")
    earlier = hidden(publisher.layout.versions / "3-1-01234567")
    for folder in (later, earlier):
        folder.mkdir()
        (folder / "probabilities").write_bytes(b"1" * 5_000)
    (publisher.layout.models / "5-0123456789abcdef").mkdir()
    publisher.remove_older(REF, 1)
    assert names(publisher.layout.versions) == {first(publisher).name, second, later.name}
    assert "5-0123456789abcdef" in names(publisher.layout.models)
    publisher.remove_older(REF, 5)
    assert names(publisher.layout.versions) == {first(publisher).name}
    assert len(names(publisher.layout.models)) == 1


@pytest.mark.parametrize(
    ("path", "fencing"),
    [
        ("models/12-0123456789abcdef", 12),
        ("models/.12-0123456789abcdef.00000001", 12),
        ("versions/3-14-0123456789abcdef", 14),
        ("versions/.3-14-0123456789abcdef.01234567", 14),
    ],
)
def test_every_name_says_under_which_lease_it_was_written(path: str, fencing: int) -> None:
    assert written_under(Path("share") / path) == fencing


def test_a_share_that_was_lost_is_an_error_until_it_is_written_again(publisher: Publisher, tmp_path: Path) -> None:
    reader = admitted(tmp_path)
    assert knows(reader, "ann@x")
    publisher.layout.remove()
    assert not publisher.has(REF)
    assert not publisher.show(REF, 1)
    with pytest.raises(FileNotFoundError):
        write(publisher, 2)
    with pytest.raises(Unavailable):
        admitted(tmp_path).predict_many([])
    load(publisher, 1)
    for one in (reader, admitted(tmp_path)):
        assert one.predict_many(["ann@x"])[0] == 1


def test_a_copy_of_a_home_makes_a_publication_of_its_own(publisher: Publisher, tmp_path: Path) -> None:
    """Its unlearner would take away what the readers of the first answer from."""
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "run", copy / "run")
    assert Layout.find(copy) is None
    assert Layout.make(copy, tmp_path / "share", room=1).path != publisher.layout.path
    assert Layout.find(tmp_path) == publisher.layout


def test_a_folder_that_others_can_write_to_is_none_of_ours(publisher: Publisher, tmp_path: Path) -> None:
    publisher.layout.path.chmod(0o770)
    assert Layout.find(tmp_path) is None


@pytest.mark.parametrize("name", ["ids", "index", "edges", "offsets", "public"])
def test_a_model_of_which_a_file_is_gone_or_cut_is_written_again(publisher: Publisher, name: str) -> None:
    for fencing, harm in ((2, Path.unlink), (4, lambda path: os.truncate(path, 1))):
        [model] = publisher.layout.models.iterdir()
        harm(model / name)
        shown = snapshot(1)
        parts = publications.published_model(IDS, shown), shown, publications.version_facts(shown)
        before = first(publisher)
        publisher.load(REF, *parts, fencing)
        publisher.remove_older(REF, fencing)
        assert view_of(publisher, REF).find("ann@x") == 0
        assert not before.exists()
        written = first(publisher)
        publisher.load(REF, *parts, fencing + 1)
        assert first(publisher) == written


@pytest.mark.parametrize("folder", ["models", "versions"])
def test_a_flipped_byte_is_never_answered_from_and_the_next_start_writes_it_again(
    publisher: Publisher, folder: str
) -> None:
    shown = snapshot(1)
    parts = publications.published_model(IDS, shown), shown, publications.version_facts(shown)
    [harmed] = (publisher.layout.path / folder).iterdir()
    for fencing, name in enumerate(sorted(names(harmed)), start=2):
        [harmed] = (publisher.layout.path / folder).iterdir()
        damaged = first(publisher)
        path = next(path for path in harmed.iterdir() if path.stem == Path(name).stem)
        data = path.read_bytes()
        for place in range(0, len(data), max(1, len(data) // 50)):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with pytest.raises(PublicationDamaged, match=f"{path.name} is damaged"):
                view_of(publisher, REF).probabilities.row(0)
        publisher.load(REF, *parts, fencing)
        assert first(publisher) != damaged, name
        publisher.remove_older(REF, fencing)
        assert view_of(publisher, REF).find("ann@x") == 0


@pytest.mark.parametrize("name", ["edges", "live"])
def test_damage_that_was_found_is_not_read_again_until_the_files_are_written_anew(
    publisher: Publisher, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [path] = publisher.layout.path.rglob(name)
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    reader = admitted(tmp_path)
    with pytest.raises(Unavailable, match=f"{name} is damaged"):
        reader.predict_many([])
    with monkeypatch.context() as patch:
        patch.setattr(checksums, "of_bytes", lambda data: pytest.fail("It was read again"))
        with pytest.raises(Unavailable, match=f"{name} is damaged"):
            reader.predict_many([])
    load(publisher, 1, fencing=2)
    assert knows(reader, "ann@x")


def test_a_reader_that_meets_an_erasure_looks_again(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    blank, met = writer._blank, list[str]()

    def blanked(path: Path, *rest: Any) -> None:
        blank(path, *rest)
        # What began before the erasure has read other checksums than there are by now.
        said = iter([before])
        with monkeypatch.context() as patch:
            patch.setattr(mapped, "read_checksums", lambda folder: next(said, None))
            with pytest.raises(FileNotFoundError, match="is being changed"):
                view_of(publisher, REF)
        # What begins in its middle cannot check what changes.
        assert view_of(publisher, REF).live.all()
        met.append(path.name)

    [model] = publisher.layout.models.iterdir()
    before = read_checksums(model)
    monkeypatch.setattr(writer, "_blank", blanked)
    publisher.erase(REF, np.array([1]), NO_EDGES, 1)
    assert met == ["index", "ids", "edges"]
    assert view_of(publisher, REF).find("ann@x") == 0


def test_checksums_of_an_unlearner_that_lost_its_lease_do_not_count(publisher: Publisher) -> None:
    [model] = publisher.layout.models.iterdir()
    before = read_checksums(model)
    publisher.erase(REF, np.array([1]), NO_EDGES, 7)
    write_checksums(model, before, 3)
    assert view_of(publisher, REF).find("ann@x") == 0


def test_a_manifest_that_is_being_overwritten_is_not_there_any_more(publisher: Publisher) -> None:
    folder = first(publisher)
    (folder / MANIFEST).write_bytes(bytes((folder / MANIFEST).stat().st_size))
    with pytest.raises(FileNotFoundError):
        view_of(publisher, REF)


def test_a_share_that_is_wanted_elsewhere_moves_and_the_one_before_goes_once_it_is_not_answered_from(
    publisher: Publisher, tmp_path: Path
) -> None:
    before, reader = publisher.layout, admitted(tmp_path)
    assert knows(reader, "ann@x")
    moving = Publisher(tmp_path, tmp_path / "elsewhere")
    load(moving, 1, 0, fencing=2)
    assert Layout.all_of(tmp_path) == [moving.layout, before]
    assert moving.layout.path.parent == tmp_path / "elsewhere"
    assert not knows(reader, "ann@x")
    moving.remove_older(REF, 2)
    assert Layout.all_of(tmp_path) == [moving.layout]
    assert not before.path.exists()
    assert knows(reader, "bob@x")


@pytest.fixture
def in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(layouts, "_MEMORY", tmp_path / "memory")
    return tmp_path / "memory"


def test_there_is_no_room_in_memory_where_no_such_file_system_is_mounted(in_memory: Path) -> None:
    in_memory.mkdir()
    assert not layouts._has_room(0)


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
    # Neither another file nor a shorter one: nothing of it has to reach the disk before something else does.
    assert (noted.stat().st_ino, noted.stat().st_size) == (before.st_ino, before.st_size)
