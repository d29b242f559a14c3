import os
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from service.errors import AlreadyRunning, ConfigurationError, KeyMissing
from service.vault.request_keys import SLOT_BYTES, RequestKeys


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "requests.slots"


def _place_of(path: Path, request_id: UUID) -> int:
    return path.read_bytes().index(request_id.bytes)


def test_reserved_keys_differ_and_survive_reopening(path: Path) -> None:
    ids = [uuid4() for _ in range(5)]
    with RequestKeys.open(path) as keys:
        made = keys.reserve(ids)
    assert len(set(made.values())) == 5
    assert all(len(key) == 32 for key in made.values())
    with RequestKeys.open(path) as keys:
        assert {request_id: keys.get(request_id) for request_id in ids} == made
        assert keys.ids() == frozenset(ids)


def test_an_unclosed_file_gives_back_its_keys_after_a_crash(path: Path) -> None:
    request_id = uuid4()
    crashed = RequestKeys.open(path)
    made = crashed.reserve([request_id])
    copy = path.with_name("copy.slots")
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o600)
    with RequestKeys.open(copy) as keys:
        assert keys.get(request_id) == made[request_id]
    crashed.close()


def test_the_bytes_of_a_destroyed_key_are_nowhere_in_the_file(path: Path) -> None:
    doomed, kept = uuid4(), uuid4()
    with RequestKeys.open(path) as keys:
        made = keys.reserve([doomed, kept])
        keys.destroy([doomed])
        assert keys.get(doomed) is None
        assert keys.get(kept) == made[kept]
    content = path.read_bytes()
    assert made[doomed] not in content
    assert doomed.bytes not in content
    assert made[kept] in content


def test_destroying_twice_or_an_unknown_request_changes_nothing(path: Path) -> None:
    request_id = uuid4()
    with RequestKeys.open(path) as keys:
        keys.reserve([request_id])
        keys.destroy([request_id])
        before = path.read_bytes()
        keys.destroy([request_id, uuid4()])
        assert path.read_bytes() == before


def test_free_slots_are_used_again_so_the_file_does_not_grow(path: Path) -> None:
    with RequestKeys.open(path) as keys:
        keys.reserve([uuid4()])
        size = path.stat().st_size
        for _ in range(50):
            ids = [uuid4() for _ in range(100)]
            keys.reserve(ids)
            keys.destroy(ids)
        assert path.stat().st_size == size
    with RequestKeys.open(path) as keys:
        keys.reserve([uuid4() for _ in range(100)])
        assert path.stat().st_size == size


def test_the_file_grows_beyond_its_first_size(path: Path) -> None:
    ids = [uuid4() for _ in range(3000)]
    with RequestKeys.open(path) as keys:
        made = keys.reserve(ids)
    with RequestKeys.open(path) as keys:
        assert keys.ids() == frozenset(ids)
        assert all(keys.get(request_id) == made[request_id] for request_id in ids)


@pytest.mark.parametrize("written", [1, 16, 20, 48, 63])
def test_a_write_cut_off_anywhere_is_recognised_and_cleared(path: Path, written: int) -> None:
    # Of an id that begins with a zero byte, the first byte alone would leave the slot free.
    torn, whole = UUID(bytes=b"\x01" + uuid4().bytes[1:]), uuid4()
    with RequestKeys.open(path) as keys:
        made = keys.reserve([torn, whole])
    place = _place_of(path, torn)
    with path.open("r+b") as file:
        file.seek(place + written)
        file.write(bytes(SLOT_BYTES - written))
    with RequestKeys.open(path) as keys:
        assert keys.torn_slots == 1
        assert keys.get(torn) is None
        assert keys.get(whole) == made[whole]
    assert path.read_bytes()[place : place + SLOT_BYTES] == bytes(SLOT_BYTES)


def test_a_slot_copied_to_another_place_is_not_taken_for_a_key(path: Path) -> None:
    request_id = uuid4()
    with RequestKeys.open(path) as keys:
        keys.reserve([request_id])
    place = _place_of(path, request_id)
    slot = path.read_bytes()[place : place + SLOT_BYTES]
    with path.open("r+b") as file:
        file.seek(place + SLOT_BYTES)
        file.write(slot)
    with RequestKeys.open(path) as keys:
        assert keys.torn_slots == 1
        assert keys.ids() == frozenset([request_id])


def test_a_growth_cut_off_by_a_crash_is_repaired(path: Path) -> None:
    request_id = uuid4()
    with RequestKeys.open(path) as keys:
        made = keys.reserve([request_id])
    os.truncate(path, path.stat().st_size - 17)
    with RequestKeys.open(path) as keys:
        assert keys.get(request_id) == made[request_id]
        keys.reserve([uuid4() for _ in range(2000)])
    assert path.stat().st_size % SLOT_BYTES == 0


def test_a_header_cut_off_at_creation_is_written_again(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"lethe req")
    path.chmod(0o600)
    with RequestKeys.open(path) as keys:
        keys.reserve([uuid4()])
    with RequestKeys.open(path) as keys:
        assert len(keys.ids()) == 1


def test_only_one_process_opens_the_file(path: Path) -> None:
    with RequestKeys.open(path), pytest.raises(AlreadyRunning, match=r"requests\.slots"):
        RequestKeys.open(path)
    RequestKeys.open(path).close()


def test_a_foreign_file_is_refused_and_left_as_it_is(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"x" * 200)
    path.chmod(0o600)
    with pytest.raises(KeyMissing, match=r"requests\.slots"):
        RequestKeys.open(path)
    assert path.read_bytes() == b"x" * 200


def test_the_file_and_its_folder_belong_to_their_owner_alone(path: Path) -> None:
    RequestKeys.open(path).close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        RequestKeys.open(path)


def test_keys_that_the_disk_refused_are_not_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    refused, later = uuid4(), uuid4()
    with RequestKeys.open(path) as keys:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", refuse)
            with pytest.raises(OSError, match="No space"):
                keys.reserve([refused])
        assert keys.ids() == frozenset()
        assert refused.bytes not in path.read_bytes()
        assert keys.reserve([later])[later] == keys.get(later)


def test_a_destruction_that_the_disk_refused_can_be_repeated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    request_id = uuid4()
    with RequestKeys.open(path) as keys:
        keys.reserve([request_id])
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", refuse)
            with pytest.raises(OSError, match="Input/output"):
                keys.destroy([request_id])
        assert keys.ids() == frozenset([request_id])
        keys.destroy([request_id])
        assert keys.ids() == frozenset()
