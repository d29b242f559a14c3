"""The erasure ledger alone: what it holds, in a folder and in a bucket, and what it notices."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from model_store.tombstones import RecordedTombstone
from service.errors import ConfigurationError, KeyMissing, StateMismatch, Unavailable
from service.ledger import erasure_ledger
from service.ledger.erasure_ledger import ErasureLedger, add_key, open_place
from service.ledger.places import FolderPlace, Place
from service.ledger.sealed_entries import Record
from service.settings import load_settings
from tests.support.clients.command_line import CommandLine
from tests.support.service.bucket import Bucket, is_signed, served_bucket


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with served_bucket() as served:
        for name, value in {
            "AWS_ENDPOINT_URL": served.url,
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "eu-west-1",
        }.items():
            monkeypatch.setenv(name, value)
        yield served


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return open_place(f"file://{tmp_path}/ledger")
    request.getfixturevalue("bucket")
    return open_place("s3://records/lethe/one")


def record(number: int, version: UUID | None = None, *tombstones: RecordedTombstone) -> Record:
    dead = tombstones or (RecordedTombstone(bytes([number]) * 32, b"k" * 15, number % 4),)
    made = version or uuid4()
    return Record("small", made, number, 3, dead, {uuid4(): "node"}, log_size=number, log_root="ab" * 32)


def written(place: Place, keys: Path, count: int = 5) -> ErasureLedger:
    ledger = ErasureLedger(place, keys, "small")
    assert ledger.open() is None
    for number in range(1, count + 1):
        ledger.append(record(number))
    return ledger


def change(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_entries_return_as_written_and_in_order_and_reveal_nothing(place: Place, keys: Path) -> None:
    ledger = ErasureLedger(place, keys, "small")
    assert ledger.open() is None
    dead, back = RecordedTombstone(b"d" * 32, b"k" * 15, 2), RecordedTombstone(b"b" * 32, b"k" * 15, 0, is_void=True)
    records = [record(1, None, dead, back), *(record(number) for number in range(2, 6))]
    for one in records:
        ledger.append(one)
    again = ErasureLedger(place, keys, "small")
    assert [entry.record for entry in again.entries()] == records
    assert again.head == ledger.head
    sealed = place.read(1)
    hidden = (b"small", dead.hash, b"node", records[0].version.bytes, str(records[0].version).encode())  # type: ignore[union-attr]
    assert not any(one in sealed for one in hidden)
    # However many ids a small batch names, its entry is as large.
    assert len(sealed) == len(place.read(2))


def test_a_record_written_twice_is_one_entry_also_if_an_answer_was_lost(bucket: Bucket, keys: Path) -> None:
    ledger = written(open_place("s3://records/lethe"), keys, 1)
    bucket.loses_answer = True
    lost = record(2)
    try:
        ledger.append(lost)
    except Unavailable:
        ledger.append(lost)
    assert [entry.record.number for entry in ledger.entries()] == [1, 2]
    writes = [(condition, is_signed(signed)) for method, condition, signed in bucket.requests if method == "PUT"]
    assert set(writes) == {("*", True)}


def test_two_writers_never_overwrite_each_other(place: Place, keys: Path) -> None:
    first = written(place, keys, 2)
    second = ErasureLedger(place, keys, "small")
    second.open()
    third = record(3)
    second.append(third)
    # One that lost its lease finishes the same version; its successor's entry is its own.
    first.append(third)
    second.append(record(4))
    with pytest.raises(StateMismatch, match="Another home writes"):
        first.append(record(3))
    assert [entry.record.number for entry in second.entries()] == [1, 2, 3, 4]


def test_an_outage_is_named_and_ends(bucket: Bucket, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = written(open_place("s3://records/lethe"), keys, 1)
    bucket.is_out = True
    with pytest.raises(Unavailable, match=r"s3://records/lethe cannot be written") as refused:
        ledger.append(record(2))
    assert "secret" not in str(refused.value)
    assert "Signature" not in refused.value.detail
    assert ledger.failure is not None
    bucket.is_out = False
    ledger.append(record(2))
    assert ledger.failing_s == 0.0


def test_a_folder_that_cannot_be_written_is_an_outage_and_leaves_nothing(tmp_path: Path, keys: Path) -> None:
    place = FolderPlace(tmp_path / "absent" / "ledger")
    ledger = ErasureLedger(place, keys, "small")
    ledger.open()
    with pytest.raises(Unavailable, match="No such file or directory"):
        ledger.append(record(1))
    # The first key is kept for the first entry: that one may have arrived.
    (tmp_path / "absent").mkdir()
    assert ErasureLedger(place, keys, "small").open() is None
    ledger.append(record(1))
    assert sorted(path.name for path in keys.iterdir()) == ["ledger-1.key"]
    assert [path.name for path in (tmp_path / "absent" / "ledger").iterdir()] == ["000000000001.entry"]


def test_nothing_is_written_into_the_empty_folder_under_a_mount(tmp_path: Path, keys: Path) -> None:
    folder = tmp_path / "ledger"
    ledger = written(FolderPlace(folder), keys, 2)
    folder.rename(tmp_path / "unmounted")
    folder.mkdir()
    with pytest.raises(Unavailable, match="cannot be written"):
        ledger.append(record(3))
    assert list(folder.iterdir()) == []
    folder.rmdir()
    (tmp_path / "unmounted").rename(folder)
    ledger.append(record(3))
    assert len(list(ledger.entries())) == 3


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/null"), Path.mkdir])
def test_what_is_not_a_file_is_not_read(tmp_path: Path, keys: Path, make: Callable[[Path], None]) -> None:
    ledger = written(FolderPlace(tmp_path / "ledger"), keys, 2)
    make(tmp_path / "ledger" / "000000000003.entry")
    with pytest.raises(Unavailable, match=r"is not a file|Is a directory"):
        ledger.open()


def test_a_ledger_below_another_s_prefix_is_not_part_of_it(bucket: Bucket, keys: Path, tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir(mode=0o700)
    written(open_place("s3://records/lethe/staging"), others, 4)
    written(open_place("s3://records/lethe"), keys, 2)
    assert open_place("s3://records/lethe").numbers() == [1, 2]


def test_trim_with_a_newer_key_does_not_stop_a_running_writer(tmp_path: Path, keys: Path) -> None:
    place = FolderPlace(tmp_path / "ledger")
    ledger = written(place, keys, 3)
    add_key(keys)
    ErasureLedger(place, keys, "small").trim(timedelta(0))
    ledger.append(record(4))
    assert [entry.record.number for entry in ledger.entries()] == [3, 3, 4]


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3://key:password@records/lethe", "s3://records?versionId=1", "s3://records#1", "file:///a#b", "ledger"],
)
def test_a_place_is_refused_rather_than_half_understood(url: str) -> None:
    with pytest.raises(ConfigurationError, match="must") as refused:
        load_settings(ledger=url)
    assert "password" not in str(refused.value)


@pytest.mark.parametrize("at", [40, 200, -1])
def test_a_changed_entry_is_noticed(tmp_path: Path, keys: Path, at: int) -> None:
    ledger = written(FolderPlace(tmp_path / "ledger"), keys)
    change(tmp_path / "ledger" / "000000000003.entry", at)
    with pytest.raises((StateMismatch, KeyMissing), match="Entry 3 of the erasure ledger"):
        list(ledger.entries())


def test_missing_exchanged_and_foreign_entries_are_noticed(tmp_path: Path, keys: Path) -> None:
    folder = tmp_path / "ledger"
    ledger = written(FolderPlace(folder), keys)
    third = folder / "000000000003.entry"
    kept = third.read_bytes()
    third.unlink()
    with pytest.raises(StateMismatch, match="lacks 1 of its entries: 3"):
        ledger.open()
    third.write_bytes((folder / "000000000004.entry").read_bytes())
    with pytest.raises(StateMismatch, match="Entry 3"):
        list(ledger.entries())
    # An entry of another chain, under the same key.
    same_key = tmp_path / "same key"
    same_key.mkdir(mode=0o700)
    shutil.copy(keys / "ledger-1.key", same_key / "ledger-1.key.new")
    other = ErasureLedger(FolderPlace(tmp_path / "other"), same_key, "small")
    for number in range(1, 4):
        other.append(record(number))
    third.write_bytes((tmp_path / "other" / "000000000003.entry").read_bytes())
    with pytest.raises(StateMismatch, match="Entry 3"):
        list(ledger.entries())
    third.write_bytes(kept)
    assert len(list(ledger.entries())) == 5


def test_the_ledger_of_another_home_or_model_and_an_empty_one_are_refused(tmp_path: Path, keys: Path) -> None:
    folder = tmp_path / "ledger"
    written(FolderPlace(folder), keys)
    with pytest.raises(StateMismatch, match="belongs to the model 'small'"):
        ErasureLedger(FolderPlace(folder), keys, "large").open()
    with pytest.raises(StateMismatch, match="is empty, and this home has written to one before"):
        ErasureLedger(FolderPlace(tmp_path / "not mounted"), keys, "small").open()
    others = tmp_path / "others"
    others.mkdir(mode=0o700)
    with pytest.raises(KeyMissing, match="belongs to another home"):
        ErasureLedger(FolderPlace(folder), others, "small").open()
    add_key(others)
    with pytest.raises(KeyMissing, match="belongs to another home"):
        ErasureLedger(FolderPlace(folder), others, "small").open()


def test_a_newer_key_encrypts_later_entries_and_both_are_needed(tmp_path: Path, keys: Path) -> None:
    place = FolderPlace(tmp_path / "ledger")
    written(place, keys, 2)
    assert add_key(keys).name == "ledger-2.key"
    ledger = ErasureLedger(place, keys, "small")
    ledger.open()
    ledger.append(record(3))
    assert len(list(ledger.entries())) == 3
    (keys / "ledger-1.key").unlink()
    # The newest entry can be read, the oldest cannot.
    assert ledger.open() is not None
    with pytest.raises(KeyMissing, match=r"ledger-1\.key is missing"):
        list(ledger.entries())


def test_old_entries_end_and_the_rest_stays_a_chain(place: Place, keys: Path) -> None:
    ledger = written(place, keys)
    assert ledger.trim(timedelta(days=1)) == 0
    assert ledger.trim(timedelta(0)) == 4
    assert place.numbers() == [5, 6]
    [newest, marker] = ErasureLedger(place, keys, "small").entries()
    assert (newest.record.number, marker.record.number, marker.trimmed.first) == (5, 5, 5)
    assert marker.trimmed.version is not None
    assert (marker.record.log_size, marker.record.log_root) == (5, "ab" * 32)
    ledger.append(record(6))
    assert [entry.record.number for entry in ErasureLedger(place, keys, "small").entries()] == [5, 5, 6]
    # The new beginning is part of the chain: what follows it cannot be removed unseen.
    place.remove(5)
    with pytest.raises(StateMismatch, match="lacks 1 of its entries: 5"):
        ledger.open()


@pytest.mark.parametrize("days", ["-1", "1e300", "inf", "nan", "36501"])
def test_an_age_beyond_a_hundred_years_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], days: str
) -> None:
    monkeypatch.setenv("LETHE_LEDGER", str(tmp_path / "ledger"))
    ran = CommandLine(capsys)("ledger", "trim", f"--keep-days={days}", "--home", tmp_path)
    assert (ran.status, ran.stdout) == (2, "")
    assert "--keep-days must be from 0 to 36500" in ran.stderr


def test_a_place_that_does_not_answer_is_reported_meanwhile(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = threading.Event(), threading.Event()

    class Hanging(FolderPlace):
        def create(self, number: int, content: bytes) -> bool:
            asked.set()
            answered.wait()
            return super().create(number, content)

    monkeypatch.setattr(erasure_ledger, "_SILENT_S", 0.0)
    ledger = ErasureLedger(Hanging(tmp_path / "ledger"), keys, "small")
    ledger.open()

    def state() -> tuple[str | None, float]:
        return ledger.failure, ledger.failing_s

    assert state() == (None, 0.0)
    waiting = threading.Thread(target=ledger.append, args=(record(1),))
    waiting.start()
    try:
        asked.wait()
        failure, failing_s = state()
        assert failure == f"The erasure ledger {tmp_path}/ledger does not answer."
        assert failing_s > 0
    finally:
        answered.set()
        waiting.join()
    assert state() == (None, 0.0)


def test_a_bucket_needs_its_package_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(ConfigurationError, match="needs the package obstore"):
        open_place("s3://records/lethe")


def test_entries_are_private_to_their_owner(tmp_path: Path, keys: Path) -> None:
    written(FolderPlace(tmp_path / "ledger"), keys, 1)
    assert os.stat(tmp_path / "ledger").st_mode & 0o077 == 0  # noqa: PTH116
    assert os.stat(tmp_path / "ledger" / "000000000001.entry").st_mode & 0o077 == 0  # noqa: PTH116
