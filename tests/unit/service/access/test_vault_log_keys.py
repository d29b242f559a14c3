from pathlib import Path

import pytest

from service.errors import ConfigurationError, KeyMissing
from service.log.signing_keys import UNLEARNER_PART, LogKeys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def public(keys: LogKeys) -> dict[int, object]:
    return {number: signer.public for number, signer in keys.signers().items()}


def test_a_key_is_made_once_and_readable_by_the_owner_alone(folder: Path) -> None:
    first = LogKeys.open(folder)
    assert public(first) == public(LogKeys.open(folder, create=False))
    found = {path.name: path.stat().st_mode & 0o777 for path in (folder / UNLEARNER_PART).iterdir()}
    assert found == {"log-1.key": 0o600, "log.name": 0o600}


def test_a_key_that_others_may_read_is_refused(folder: Path) -> None:
    LogKeys.open(folder)
    (folder / UNLEARNER_PART / "log-1.key").chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod"):
        LogKeys.open(folder)


def test_without_keys_none_is_made_unless_asked_for(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    with pytest.raises(KeyMissing, match=r"key folder .*/unlearner does not exist"):
        LogKeys.open(folder, create=False)
    (folder / UNLEARNER_PART).mkdir(mode=0o700)
    with pytest.raises(KeyMissing, match=r"log-1\.key"):
        LogKeys.open(folder, create=False)


def test_a_new_key_signs_beside_the_old_until_that_is_removed(folder: Path) -> None:
    old = LogKeys.open(folder)
    both = LogKeys.add(folder)
    assert tuple(both.signers()) == (1, 2)
    assert both.origin == old.origin
    registered = {number: signer.public for number, signer in both.signers().items()}
    old.check({1: registered[1]})
    both.check({1: registered[1]})
    both.check(registered)
    (folder / UNLEARNER_PART / "log-1.key").unlink()
    alone = LogKeys.open(folder)
    alone.check(registered)
    assert (tuple(alone.signers()), alone.origin) == ((2,), old.origin)


def test_another_key_of_the_same_number_is_refused(folder: Path, tmp_path: Path) -> None:
    used = LogKeys.open(tmp_path / "used")
    registered = {number: signer.public for number, signer in used.signers().items()}
    (used_name, other_name) = (used.origin, LogKeys.open(folder).origin)
    with pytest.raises(KeyMissing, match=rf"log\.name calls the log {other_name}.* is {used_name}"):
        LogKeys.open(folder).check(registered)
    (folder / UNLEARNER_PART / "log.name").write_text(used_name)
    with pytest.raises(KeyMissing, match=r"log-1\.key is not the key"):
        LogKeys.open(folder).check(registered)


def test_an_older_key_folder_is_refused(folder: Path) -> None:
    old = LogKeys.open(folder)
    both = LogKeys.add(folder)
    registered = {number: signer.public for number, signer in both.signers().items()}
    with pytest.raises(KeyMissing, match=r"log-2\.key is not in"):
        old.check(registered)


def test_a_lost_key_is_replaced_by_a_newer_one(folder: Path) -> None:
    lost = LogKeys.open(folder)
    registered = {number: signer.public for number, signer in lost.signers().items()}
    (folder / UNLEARNER_PART / "log-1.key").unlink()
    newer = LogKeys.add(folder, 2)
    newer.check(registered)
    assert tuple(newer.signers()) == (2,)
    (folder / UNLEARNER_PART / "log.name").unlink()
    with pytest.raises(KeyMissing, match=r"log\.name"):
        LogKeys.open(folder)


def test_a_number_that_is_not_newer_is_refused(folder: Path) -> None:
    LogKeys.open(folder)
    LogKeys.add(folder, 5)
    with pytest.raises(ConfigurationError, match="Key 5 exists"):
        LogKeys.add(folder, 5)
