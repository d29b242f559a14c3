"""The model's own record of what was deleted: kept through crashes, and never believed where it is damaged."""

from pathlib import Path

import pytest

from model_store import tombstones
from model_store.tombstones import KEY_BYTES, Kept, KeptTombstone

ONE, TWO, THREE = (
    KeptTombstone(bytes([number]) * 32, bytes([number]) * KEY_BYTES, number % 3) for number in (1, 2, 255)
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / tombstones.FILE


def test_what_was_added_is_read_back_once(path: Path) -> None:
    assert tombstones.read(path) == Kept((), is_whole=True)
    tombstones.append(path, [])
    assert not path.exists()
    tombstones.append(path, [ONE])
    tombstones.append(path, [TWO, ONE])
    kept = tombstones.read(path)
    assert kept == Kept((ONE, TWO), is_whole=True)
    assert kept.hashes == {ONE.hash, TWO.hash}
    tombstones.replace(path, [THREE])
    assert tombstones.read(path) == Kept((THREE,), is_whole=True)
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("left", range(1, 64, 7))
def test_a_record_that_was_cut_off_is_none_and_the_next_is_whole(path: Path, left: int) -> None:
    tombstones.append(path, [ONE, TWO])
    path.write_bytes(path.read_bytes()[: -64 + left])
    assert tombstones.read(path) == Kept((ONE,), is_whole=False)
    tombstones.append(path, [THREE])
    assert tombstones.read(path) == Kept((ONE, THREE), is_whole=True)


def test_a_flipped_bit_anywhere_is_noticed(path: Path) -> None:
    tombstones.append(path, [ONE, TWO])
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        kept = tombstones.read(path)
        assert not kept.is_whole
        assert set(kept.tombstones) <= {ONE, TWO}


def test_a_model_that_takes_the_place_of_another_takes_its_record_along(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "other" / tombstones.FILE
    target.parent.mkdir()
    tombstones.carry(path, target)
    assert not target.exists()
    tombstones.append(path, [ONE])
    tombstones.append(target, [TWO])
    tombstones.carry(path, target)
    assert tombstones.read(target) == Kept((ONE,), is_whole=True)
    # Where it was served before, something else was deleted, and by other keys.
    path.unlink()
    tombstones.carry(path, target)
    assert not target.exists()
