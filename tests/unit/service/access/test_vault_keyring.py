import threading
from pathlib import Path

import pytest

from service.access.api_keys import new_api_key
from service.access.keyring import Keyring
from service.domain.kinds import Part, RequestKind
from service.errors import ConfigurationError, KeyMissing


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_keys_and_their_folder_are_readable_by_the_owner_alone(folder: Path) -> None:
    Keyring.open(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert sorted(path.name for path in folder.iterdir()) == [
        "api-pepper.key",
        "body.key",
        "cursor.key",
        "tombstone-1.key",
    ]


@pytest.mark.parametrize(("what", "mode"), [("api-pepper.key", 0o640), (".", 0o755)])
def test_keys_that_others_may_read_are_refused(folder: Path, what: str, mode: int) -> None:
    Keyring.open(folder)
    (folder / what).chmod(mode)
    with pytest.raises(ConfigurationError, match="chmod"):
        Keyring.open(folder)


@pytest.mark.parametrize("name", ["api-pepper.key", "body.key", "cursor.key", "tombstone-1.key"])
def test_a_missing_key_is_named(folder: Path, name: str) -> None:
    Keyring.open(folder)
    (folder / name).unlink()
    with pytest.raises(KeyMissing, match=name):
        Keyring.open(folder, create=False)


@pytest.mark.parametrize("content", ["", "abc", "zz" * 32, "00" * 31])
def test_a_damaged_key_is_named_and_not_replaced(folder: Path, content: str) -> None:
    Keyring.open(folder)
    (folder / "body.key").write_text(content)
    with pytest.raises(KeyMissing, match=r"body\.key"):
        Keyring.open(folder)
    assert (folder / "body.key").read_text() == content


def test_openers_that_collide_on_a_new_folder_end_with_the_same_keys(folder: Path) -> None:
    found: list[bytes] = []
    start = threading.Barrier(8)

    def open_one() -> None:
        start.wait()
        found.append(Keyring.open(folder).cursor_key)

    threads = [threading.Thread(target=open_one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_tombstone_distinguishes_model_kind_and_id(folder: Path) -> None:
    keyring = Keyring.open(folder)
    hashes = {
        keyring.tombstone_hash(model, kind, subject)[1]
        for model in ("a", "ab")
        for kind in RequestKind
        for subject in ("b", "bb", ("1", "23"), ("12", "3"))
    }
    assert len(hashes) == 2 * len(RequestKind) * 4


def test_an_edge_has_one_tombstone_in_both_directions(folder: Path) -> None:
    keyring = Keyring.open(folder)
    forward = keyring.tombstone_hash("m", RequestKind.EDGE, ("1", "2"))
    assert forward == keyring.tombstone_hash("m", RequestKind.EDGE, ("2", "1"))


def test_after_a_rotation_new_tombstones_use_the_new_key_and_old_ones_are_still_found(folder: Path) -> None:
    number, old = Keyring.open(folder).tombstone_hash("m", RequestKind.NODE, "7")
    assert number == 1
    (folder / "tombstone-2.key").write_text("ab" * 32)
    (folder / "tombstone-2.key").chmod(0o600)
    keyring = Keyring.open(folder)
    number, new = keyring.tombstone_hash("m", RequestKind.NODE, "7")
    assert number == 2
    assert keyring.tombstone_hash("m", RequestKind.NODE, "7", number=1) == (1, old)
    assert keyring.tombstone_hashes("m", Part.NODES, ["7"]) == {old: "7", new: "7"}


def test_a_key_the_database_refers_to_and_nobody_has_is_named(folder: Path, tmp_path: Path) -> None:
    keyring = Keyring.open(folder)
    keyring.check({})
    keyring.check(keyring.fingerprints())
    with pytest.raises(KeyMissing, match=r"tombstone-3\.key"):
        keyring.check({**keyring.fingerprints(), 3: bytes(16)})
    with pytest.raises(KeyMissing, match=r"tombstone-1\.key is not the key"):
        keyring.check(Keyring.open(tmp_path / "other").fingerprints())
    with pytest.raises(KeyMissing, match=r"tombstone-9\.key"):
        keyring.tombstone_hash("m", RequestKind.NODE, "7", number=9)


def test_an_api_key_names_its_id_and_carries_256_random_bits() -> None:
    keys = [new_api_key() for _ in range(100)]
    for key in keys:
        prefix, short_id, secret = key.text.split("_", 2)
        assert prefix == "lethe"
        assert short_id == key.id.hex[:8]
        assert len(secret) == 43
    assert len({key.text[-43:] for key in keys}) == 100
