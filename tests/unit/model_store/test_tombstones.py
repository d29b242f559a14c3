"""The model's own record of deletions: kept across crashes and beside other writers, with damage detected."""

import os
from pathlib import Path

import pytest

from model_store import tombstones
from model_store.tombstones import KEY_BYTES, RecordedTombstone, TombstoneRecord

ONE, TWO, THREE = (
    RecordedTombstone(bytes([number]) * 32, bytes([number]) * KEY_BYTES, number % 3) for number in (1, 2, 255)
)
#: Bytes of a header, or of a record.
SLOT = 64


def file_of(folder: Path, fencing: int) -> Path:
    return folder / f"tombstones-{fencing}"


def test_what_was_added_is_read_back_once(tmp_path: Path) -> None:
    assert tombstones.read(tmp_path) == TombstoneRecord()
    tombstones.append(tmp_path, [], fencing=3)
    assert list(tmp_path.iterdir()) == []
    tombstones.append(tmp_path, [ONE], fencing=3)
    tombstones.append(tmp_path, [TWO, ONE], fencing=3)
    kept = tombstones.read(tmp_path)
    assert (kept.tombstones, kept.damaged) == ((ONE, TWO), ())
    assert kept.hashes == {ONE.hash, TWO.hash}
    tombstones.replace(tmp_path, [THREE], fencing=3)
    assert tombstones.read(tmp_path) == TombstoneRecord((THREE,))
    assert tombstones.fencing(tmp_path) == 3
    assert file_of(tmp_path, 3).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("left", range(1, SLOT, 7))
def test_a_record_that_was_cut_off_is_none_and_the_next_is_whole(tmp_path: Path, left: int) -> None:
    tombstones.append(tmp_path, [ONE], fencing=3)
    tombstones.append(tmp_path, [TWO], fencing=3)
    path = file_of(tmp_path, 3)
    path.write_bytes(path.read_bytes()[: -SLOT + left])
    assert tombstones.read(tmp_path) == TombstoneRecord((ONE,), is_tidy=False)
    tombstones.append(tmp_path, [THREE], fencing=3)
    kept = tombstones.read(tmp_path)
    assert (kept.tombstones, kept.damaged) == ((ONE, THREE), ())


def test_a_flipped_bit_anywhere_is_damage(tmp_path: Path) -> None:
    tombstones.append(tmp_path, [ONE], fencing=3)
    tombstones.append(tmp_path, [TWO], fencing=3)
    path = file_of(tmp_path, 3)
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        kept = tombstones.read(tmp_path)
        assert kept.damaged == (path,)
        assert not kept.is_tidy
        assert set(kept.tombstones) <= {ONE, TWO}


def test_a_file_that_is_shorter_than_it_was_made_is_damage(tmp_path: Path) -> None:
    tombstones.replace(tmp_path, [ONE, TWO], fencing=3)
    path = file_of(tmp_path, 3)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert tombstones.read(tmp_path).damaged == (path,)


def test_writers_add_to_files_of_their_own_and_all_of_it_counts(tmp_path: Path) -> None:
    tombstones.append(tmp_path, [ONE], fencing=3)
    tombstones.append(tmp_path, [TWO], fencing=10)
    assert tombstones.read(tmp_path) == TombstoneRecord((ONE, TWO), is_tidy=False)
    assert tombstones.fencing(tmp_path) == 10
    tombstones.replace(tmp_path, [ONE, TWO], fencing=11)
    assert [path.name for path in tmp_path.iterdir()] == ["tombstones-11"]
    assert tombstones.read(tmp_path) == TombstoneRecord((ONE, TWO))
    # If overtaken before it began, it leaves nothing: its successor has copied everything from the database.
    tombstones.append(tmp_path, [THREE], fencing=3)
    tombstones.replace(tmp_path, [ONE], fencing=4)
    assert [path.name for path in tmp_path.iterdir()] == ["tombstones-11"]
    assert tombstones.read(tmp_path) == TombstoneRecord((ONE, TWO))


def test_a_writer_that_was_overtaken_within_an_addition_takes_nothing_from_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tombstones.append(tmp_path, [ONE], fencing=3)
    path = file_of(tmp_path, 3)
    path.write_bytes(path.read_bytes() + b"what a full disk has left")
    truncate = os.ftruncate

    def overtaken(descriptor: int, length: int) -> None:
        monkeypatch.undo()
        tombstones.append(tmp_path, [TWO], fencing=4)
        truncate(descriptor, length)

    monkeypatch.setattr(os, "ftruncate", overtaken)
    tombstones.append(tmp_path, [THREE], fencing=3)
    kept = tombstones.read(tmp_path)
    assert (kept.tombstones, kept.damaged) == ((ONE, THREE, TWO), ())


def test_reading_goes_on_with_what_a_writer_has_just_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tombstones.append(tmp_path, [ONE], fencing=3)
    tombstones.append(tmp_path, [TWO], fencing=4)
    read_bytes = Path.read_bytes

    def taken_over(path: Path) -> bytes:
        monkeypatch.undo()
        tombstones.replace(tmp_path, [ONE, TWO], fencing=5)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", taken_over)
    assert tombstones.read(tmp_path) == TombstoneRecord((ONE, TWO))
    (tmp_path / "tombstones-6").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        tombstones.read(tmp_path)


def test_a_model_that_takes_the_place_of_another_takes_its_record_along(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    tombstones.carry(source, target)
    assert list(target.iterdir()) == []
    tombstones.append(source, [ONE], fencing=3)
    tombstones.append(source, [TWO], fencing=4)
    tombstones.append(target, [THREE], fencing=5)
    tombstones.carry(source, target)
    assert tombstones.read(target) == TombstoneRecord((ONE, TWO), is_tidy=False)
    # The former service deleted something else, with other keys.
    for path in source.iterdir():
        path.unlink()
    tombstones.carry(source, target)
    assert list(target.iterdir()) == []
