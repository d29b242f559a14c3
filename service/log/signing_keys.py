"""The private keys that sign the log's checkpoints: `log-<number>.key` in the key folder, outside the database.

A new key gets a new number. While an older key lies beside it, checkpoints carry both signatures. Once the older file
is removed, the newer key signs alone.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from pathlib import Path

from service import private_files
from service.errors import ConfigurationError, KeyMissing
from service.log.checkpoints import Signer, VerifierKey

#: The part of the key folder that only the unlearner reads; hide it from processes that answer callers where you can.
UNLEARNER_PART = "unlearner"
_FILE = re.compile(r"log-([1-9][0-9]*)\.key")
_NAME = "log.name"


class LogKeys:
    """The log keys of one installation, by number."""

    def __init__(self, origin: str, seeds: Mapping[int, bytes]) -> None:
        #: Name of the signed log. It derives from the first key and outlives that key.
        self.origin = origin
        self._seeds = dict(sorted(seeds.items()))

    @classmethod
    def open(cls, folder: Path, *, create: bool = True) -> "LogKeys":
        """Read the keys in `folder`; if none exists and `create` is true, first create one.

        Raises `KeyMissing` naming an absent or damaged file, and `ConfigurationError` when other users may read one.
        """
        own = _part(folder, create=create)
        if create and not _numbers(own):
            private_files.create_key(_path(own, 1))
        seeds = {number: private_files.read_key(_path(own, number)) for number in _numbers(own) or [1]}
        return cls(_origin(own, seeds), seeds)

    @classmethod
    def add(cls, folder: Path, number: int | None = None) -> "LogKeys":
        """Create key `number` in `folder`, by default the next number, beside existing keys. Raises as `open`.

        Raises `ConfigurationError` if a key with this or a greater number exists.
        """
        own = _part(folder, create=True)
        if not (own / "log.name").is_file() and 1 in _numbers(own):
            cls.open(folder)
        newest = max(_numbers(own), default=0)
        number = number or newest + 1
        if number <= newest:
            raise ConfigurationError(f"Key {newest} exists, and {number} is not newer.", "Omit the number.")
        private_files.create_key(_path(own, number))
        return cls.open(folder, create=False)

    def signers(self) -> dict[int, Signer]:
        """Return the signers by key number."""
        return {number: Signer(self.origin, seed) for number, seed in self._seeds.items()}

    def check(self, registered: Mapping[int, VerifierKey]) -> None:
        """Raise `KeyMissing` unless these keys can continue the log that `registered` signed.

        A number used before must have the same key, and the newest key used must not be newer than all of these.
        """
        for number, key in registered.items():
            if key.name != self.origin:
                raise KeyMissing(
                    f"The file log.name calls the log {self.origin}, and this database's log is {key.name}.",
                    f"Restore the key folder that belongs to this database, or write {key.name} into log.name.",
                )
            if number not in self._seeds:
                continue
            own = Signer(key.name, self._seeds[number]).public.key
            if not hmac.compare_digest(own, key.key):
                raise KeyMissing(
                    f"The file log-{number}.key is not the key that signed this database's log.",
                    f"Restore the key folder that belongs to this database. {_replace(registered)}",
                )
        if registered and max(registered) > max(self._seeds, default=0):
            raise KeyMissing(
                f"This database's log is signed with key {max(registered)}, and log-{max(registered)}.key is not in "
                "the key folder.",
                f"Restore the file from the backup of LETHE_HOME. {_replace(registered)}",
            )

    def check_files(self, folder: Path) -> None:
        """Read the disk and raise `KeyMissing` unless `folder` still holds the newest of these keys and the name."""
        newest, own = max(self._seeds), folder / UNLEARNER_PART
        if not hmac.compare_digest(private_files.read_key(_path(own, newest)), self._seeds[newest]):
            raise _changed(_path(own, newest))
        if name_of(folder) != self.origin:
            raise _changed(own / _NAME)


def are_there(folder: Path) -> bool:
    """Return whether `folder` holds a log key."""
    return any((folder / UNLEARNER_PART).glob("log-*.key"))


def name_of(folder: Path) -> str | None:
    """Return the name of the log that the keys in `folder` sign; None before it has one. Raises OSError."""
    path = folder / UNLEARNER_PART / _NAME
    return path.read_text(encoding="utf-8").strip() if path.exists() else None


def _part(folder: Path, *, create: bool) -> Path:
    """Return the unlearner's part of a key folder, ensuring that it exists and is private."""
    private_files.secure_folder(folder, create=create)
    private_files.secure_folder(folder / UNLEARNER_PART, create=create)
    return folder / UNLEARNER_PART


def _changed(path: Path) -> KeyMissing:
    return KeyMissing(
        f"The key file {path} was changed or removed while Lethe runs.", "Restore it from the backup of LETHE_HOME."
    )


def _origin(folder: Path, seeds: Mapping[int, bytes]) -> str:
    """Return the log's name, derived from the first key if missing. Raises `KeyMissing` if that key is gone too."""
    path = folder / _NAME
    if not path.is_file():
        if 1 not in seeds:
            raise KeyMissing(f"The file {path} does not exist.", "Restore it from the backup of LETHE_HOME.")
        first = Signer("", seeds[1]).public.key
        private_files.create_file(path, f"lethe/{hashlib.sha256(first).hexdigest()[:16]}")
    return path.read_text(encoding="utf-8").strip()


def _replace(registered: Mapping[int, VerifierKey]) -> str:
    return (
        "If the key is lost, remove what is left of that file and create a newer key with "
        f"`./lethe audit key --rotate --number {max(registered) + 1}`; verifiers then need its public part."
    )


def _numbers(folder: Path) -> list[int]:
    matches = (_FILE.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def _path(folder: Path, number: int) -> Path:
    return folder / f"log-{number}.key"
