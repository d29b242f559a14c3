"""Files of keys for id lists: a key reserved by one process is readable by any other, and emptied slots are gone."""

import fcntl
import os
import random
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from service.access import request_keys
from service.access.own_slots import OwnSlots, ReservedKey
from service.access.request_keys import SLOT_BYTES, RequestKeys
from service.domain.records import KeySlot
from service.errors import AlreadyRunning, KeyMissing
from tests.support.everyday import everyday


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "requests"


@pytest.fixture
def path(folder: Path) -> Path:
    """The file of the first process."""
    return folder / "0.slots"


def reserve(folder: Path, *ids: UUID) -> dict[UUID, ReservedKey]:
    """Reserve keys in a process that ends right after."""
    with OwnSlots.open(folder) as own:
        return own.reserve(ids)


def held(folder: Path) -> set[UUID]:
    return {request_id for page in RequestKeys(folder).held() for request_id in page}


def places(made: dict[UUID, ReservedKey]) -> dict[UUID, KeySlot]:
    return {request_id: reserved.slot for request_id, reserved in made.items()}


def offset(reserved: ReservedKey) -> int:
    return reserved.slot.place * SLOT_BYTES


def test_each_process_has_a_file_of_its_own_and_takes_over_that_of_one_that_has_ended(folder: Path) -> None:
    first, second = uuid4(), uuid4()
    with OwnSlots.open(folder) as one, OwnSlots.open(folder) as other:
        made = one.reserve([first]) | other.reserve([second])
        assert [reserved.slot.file for reserved in made.values()] == [0, 1]
        with pytest.raises(AlreadyRunning, match=r"1\.slots"):
            OwnSlots.open(folder, 1)
    assert reserve(folder, third := uuid4())[third].slot == KeySlot(0, made[first].slot.place + 1)
    assert held(folder) == {first, second, third}
    RequestKeys(folder).destroy(places(made))
    assert held(folder) == {third}


def test_the_bytes_of_a_destroyed_key_are_nowhere_in_the_file(folder: Path, path: Path) -> None:
    made = reserve(folder, doomed := uuid4(), kept := uuid4())
    keys = RequestKeys(folder)
    keys.destroy({doomed: made[doomed].slot})
    assert keys.get(doomed, made[doomed].slot) is None
    assert keys.get(kept, made[kept].slot) == made[kept].key
    content = path.read_bytes()
    assert made[doomed].key not in content
    assert doomed.bytes not in content
    assert made[kept].key in content


def test_a_key_is_destroyed_only_in_the_slot_of_its_own_request(folder: Path, path: Path) -> None:
    made = reserve(folder, first := uuid4(), second := uuid4())
    keys, before = RequestKeys(folder), path.read_bytes()
    # The slot of another, one past the end, one of another file, and a free one.
    for slot in (made[second].slot, KeySlot(0, 10**6), KeySlot(7, 1), KeySlot(0, 100)):
        keys.destroy({first: slot})
        assert keys.get(first, slot) is None
        assert keys.lacking({first: slot}) == {first}
    assert keys.get(first, None) is None
    assert keys.lacking({first: None, second: made[second].slot}) == {first}
    assert path.read_bytes() == before


def test_slots_that_others_empty_are_used_again_so_the_file_does_not_grow(folder: Path, path: Path) -> None:
    keys = RequestKeys(folder)
    with OwnSlots.open(folder) as own:
        own.reserve([uuid4()])
        size = path.stat().st_size
        for turn in range(50):
            made = places(own.reserve([uuid4() for _ in range(100)]))
            # By the process itself, whose commit was never sent, and by the unlearner.
            (own if turn % 2 else keys).destroy(made)
        assert path.stat().st_size == size
    with OwnSlots.open(folder) as own:
        own.reserve([uuid4() for _ in range(100)])
        assert path.stat().st_size == size


def test_the_file_grows_beyond_its_first_size(folder: Path) -> None:
    with OwnSlots.open(folder) as own:
        made = own.reserve([uuid4() for _ in range(3000)]) | own.reserve([uuid4() for _ in range(30_000)])
    keys = RequestKeys(folder)
    assert len({one.slot for one in made.values()}) == 33_000
    assert held(folder) == made.keys()
    assert keys.count() == 33_000
    assert keys.lacking(places(made)) == set()


@pytest.mark.parametrize("written", [1, 16, 20, 48, 62])
def test_a_write_cut_off_anywhere_is_no_key_and_is_cleared(folder: Path, path: Path, written: int) -> None:
    # For an id that begins with a zero byte, the first byte alone would leave the slot free.
    torn, whole = UUID(bytes=b"\x01" + uuid4().bytes[1:]), uuid4()
    made = reserve(folder, torn, whole)
    with path.open("r+b") as file:
        file.seek(offset(made[torn]) + written)
        file.write(bytes(SLOT_BYTES - written))
    keys = RequestKeys(folder)
    assert keys.get(torn, made[torn].slot) is None
    # It is not reused before it is cleared.
    assert made[torn].slot not in places(reserve(folder, other := uuid4())).values()
    assert keys.clear_torn() == 1
    assert keys.clear_torn() == 0
    assert held(folder) == {whole, other}
    assert path.read_bytes()[offset(made[torn]) :][:SLOT_BYTES] == bytes(SLOT_BYTES)


def test_a_slot_copied_to_another_place_is_not_taken_for_a_key(folder: Path, path: Path) -> None:
    made = reserve(folder, request_id := uuid4())
    slot = path.read_bytes()[offset(made[request_id]) :][:SLOT_BYTES]
    with path.open("r+b") as file:
        file.seek(offset(made[request_id]) + SLOT_BYTES)
        file.write(slot)
    keys = RequestKeys(folder)
    assert keys.get(request_id, KeySlot(0, made[request_id].slot.place + 1)) is None
    assert keys.clear_torn() == 1
    assert held(folder) == {request_id}


def test_a_growth_cut_off_by_a_crash_is_repaired(folder: Path, path: Path) -> None:
    made = reserve(folder, request_id := uuid4())
    os.truncate(path, path.stat().st_size - 17)
    reserve(folder, *(uuid4() for _ in range(2000)))
    assert RequestKeys(folder).get(request_id, made[request_id].slot) == made[request_id].key
    assert path.stat().st_size % SLOT_BYTES == 0


def test_a_header_cut_off_at_creation_is_written_again(folder: Path, path: Path) -> None:
    folder.mkdir(mode=0o700, parents=True)
    folder.parent.chmod(0o700)
    path.write_bytes(b"lethe req")
    path.chmod(0o600)
    RequestKeys(folder).check_files()
    reserve(folder, request_id := uuid4())
    assert held(folder) == {request_id}


def test_a_foreign_file_is_refused_and_left_as_it_is(folder: Path, path: Path) -> None:
    folder.mkdir(mode=0o700, parents=True)
    folder.parent.chmod(0o700)
    path.write_bytes(b"x" * 200)
    path.chmod(0o600)
    for look in (RequestKeys(folder).check_files, lambda: OwnSlots.open(folder)):
        with pytest.raises(KeyMissing, match=r"0\.slots"):
            look()
    assert path.read_bytes() == b"x" * 200


def test_a_file_that_was_removed_is_missed(folder: Path, path: Path) -> None:
    with OwnSlots.open(folder) as own:
        own.check_file()
        path.unlink()
        with pytest.raises(KeyMissing, match=r"0\.slots was removed"):
            own.check_file()
    assert RequestKeys(folder).count() == 0


def test_keys_that_the_disk_refused_are_not_kept(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    refused, later = uuid4(), uuid4()
    with OwnSlots.open(folder) as own:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", refuse)
            with pytest.raises(OSError, match="No space"):
                own.reserve([refused])
        assert held(folder) == set()
        assert refused.bytes not in path.read_bytes()
        made = own.reserve([later])[later]
        assert RequestKeys(folder).get(later, made.slot) == made.key


@pytest.mark.parametrize("by", ["its process", "the unlearner"])
def test_a_destruction_that_the_disk_refused_is_repeated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    synced: list[int] = []

    def refuse(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with OwnSlots.open(folder) as own:
        made = places(own.reserve([uuid4()]))
        who = own if by == "its process" else RequestKeys(folder)
        monkeypatch.setattr(os, "fdatasync", refuse)
        with pytest.raises(OSError, match="Input/output"):
            who.destroy(made)
        monkeypatch.setattr(os, "fdatasync", synced.append)
        who.destroy(made)
    assert len(synced) == 1
    assert held(folder) == set()


def test_nobody_fills_a_slot_that_another_is_about_to_empty(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late or repeated destruction does not remove the key of the next request in that slot."""
    write, alone = request_keys._write, 0

    def interrupted(descriptor: int, place: int, content: bytes) -> None:
        nonlocal alone
        other = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
        alone += 1
        write(descriptor, place, content)

    monkeypatch.setattr(request_keys, "_write", interrupted)
    with OwnSlots.open(folder) as own:
        gone = places(own.reserve([uuid4()]))
        own.destroy(gone)
        # The lowest free one, once the file is scanned again.
        own._free.clear()
        made = own.reserve([uuid4()])
        assert [*gone.values()] == [*places(made).values()]
        RequestKeys(folder).destroy(gone)
        RequestKeys(folder).destroy(places(own.reserve([uuid4()])))
    assert held(folder) == made.keys()
    assert alone == 5


@pytest.mark.parametrize("seed", everyday(range(3), 0))
def test_after_any_order_of_what_processes_do_there_is_what_was_not_destroyed(folder: Path, seed: int) -> None:
    """Three processes that end and restart, an unlearner that also destroys late, and a reader, against a dict."""
    rng, keys = random.Random(seed), RequestKeys(folder)
    alive: list[OwnSlots] = []
    expected: dict[UUID, ReservedKey] = {}
    gone: dict[UUID, KeySlot] = {}
    for _ in range(100):
        what = rng.choice(["begin", "end", "reserve", "reserve", "undo", "destroy", "destroy late"])
        own = rng.choice(alive) if alive else None
        if what == "begin" and len(alive) < 3:
            alive.append(OwnSlots.open(folder))
        elif what == "end" and own is not None:
            alive.remove(own)
            own.close()
        elif what == "reserve" and own is not None:
            expected |= own.reserve([uuid4() for _ in range(rng.choice([1, 7, 300]))])
        elif what == "destroy late":
            keys.destroy(dict(rng.sample(sorted(gone.items()), min(len(gone), 50))))
        elif what in ("undo", "destroy"):
            of_one = {one for one, made in expected.items() if own and made.slot.file == own.number}
            free = sorted(of_one if what == "undo" else expected)
            doomed = {one: expected[one].slot for one in rng.sample(free, min(len(free), rng.choice([1, 200])))}
            (own if what == "undo" and own else keys).destroy(doomed)
            gone |= doomed
            for one in doomed:
                del expected[one]
        assert held(folder) == expected.keys()
    assert all(keys.get(one, made.slot) == made.key for one, made in expected.items())
    assert not any(keys.get(one, slot) for one, slot in gone.items())
    for own in alive:
        own.close()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_nothing_is_reserved_in_a_file_that_no_other_process_finds(folder: Path, path: Path, is_replaced: bool) -> None:
    with OwnSlots.open(folder) as own:
        content = path.read_bytes()
        path.unlink()
        if is_replaced:
            path.write_bytes(content)
        with pytest.raises(KeyMissing, match="removed or replaced while Lethe runs"):
            own.reserve([uuid4()])
        assert held(folder) == set()
