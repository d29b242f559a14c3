"""The long-lived keys of an installation, and the keyed hashes made with them.

All hashes are HMAC-SHA-256. What goes in is framed (each part preceded by its length), so no two different
inputs share an encoding.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from service.domain.states import RequestKind
from service.errors import KeyMissing
from service.vault import key_files

#: A node's external id, or an edge's two, in either order.
Subject = str | tuple[str, str]

_TOMBSTONE_FILE = re.compile(r"tombstone-([1-9][0-9]*)\.key")


class Keyring:
    """The keys in `LETHE_HOME/keys`: tombstone keys by number, the pepper of API keys, body and cursor keys."""

    def __init__(
        self, tombstone_keys: Mapping[int, bytes], api_pepper: bytes, body_key: bytes, cursor_key: bytes
    ) -> None:
        self._tombstone_keys = dict(sorted(tombstone_keys.items()))
        self._api_pepper = api_pepper
        self._body_key = body_key
        #: Signs the cursors of result pages.
        self.cursor_key = cursor_key

    @classmethod
    def open(cls, folder: Path, *, create: bool = True) -> "Keyring":
        """Read the keys in `folder`, first making those that do not exist yet when `create` is true.

        Raises `KeyMissing` naming an absent or damaged file, `ConfigurationError` when others may read one.
        """
        key_files.secure_folder(folder, create=create)
        numbers = _tombstone_numbers(folder) or [1]
        names = ["api-pepper", "body", "cursor", *(f"tombstone-{number}" for number in numbers)]
        for name in names:
            path = folder / f"{name}.key"
            if create and not path.exists():
                key_files.create_key(path)
        keys = {name: key_files.read_key(folder / f"{name}.key") for name in names}
        return cls(
            {number: keys[f"tombstone-{number}"] for number in numbers},
            keys["api-pepper"],
            keys["body"],
            keys["cursor"],
        )

    def api_key_hash(self, text: str) -> bytes:
        """Return the 32 bytes under which an API key is stored."""
        return hmac.digest(self._api_pepper, _frame("lethe/api-key", text), hashlib.sha256)

    def body_digest(self, body: bytes) -> bytes:
        """Return the 32 bytes by which a repeated `Idempotency-Key` is told from a reused one.

        Keyed, because a plain digest of a short body would let a reader of the database guess the ids in it.
        """
        return hmac.digest(self._body_key, body, hashlib.sha256)

    def tombstone_hash(
        self, model: str, kind: RequestKind, subject: Subject, number: int | None = None
    ) -> tuple[int, bytes]:
        """Return the key number (the newest unless given) and the 32-byte tombstone of a node or edge.

        Raises `KeyMissing` when there is no key of that number.
        """
        chosen = max(self._tombstone_keys) if number is None else number
        if chosen not in self._tombstone_keys:
            raise _missing_tombstone_key(chosen)
        parts = sorted(subject) if isinstance(subject, tuple) else [subject]
        message = _frame("lethe/tombstone", model, kind.value, *parts)
        return chosen, hmac.digest(self._tombstone_keys[chosen], message, hashlib.sha256)

    def tombstone_hashes(self, model: str, kind: RequestKind, subjects: Iterable[Subject]) -> dict[bytes, Subject]:
        """Return every hash under which one of `subjects` may be recorded, for all key numbers, with its subject."""
        return {
            self.tombstone_hash(model, kind, subject, number)[1]: subject
            for subject in subjects
            for number in self._tombstone_keys
        }

    def fingerprints(self) -> dict[int, bytes]:
        """Return 16 bytes by key number that tell tombstone keys apart and reveal nothing about them."""
        message = _frame("lethe/tombstone-key-fingerprint")
        return {number: hmac.digest(key, message, hashlib.sha256)[:16] for number, key in self._tombstone_keys.items()}

    def check(self, registered: Mapping[int, bytes]) -> None:
        """Raise `KeyMissing` unless every tombstone key the database refers to is here, and is the same key."""
        own = self.fingerprints()
        for number, fingerprint in sorted(registered.items()):
            if number not in own:
                raise _missing_tombstone_key(number)
            if not hmac.compare_digest(own[number], fingerprint):
                raise KeyMissing(
                    f"The file tombstone-{number}.key is not the key that made the database's tombstones.",
                    "Restore the key folder that belongs to this database; until then deleted nodes cannot be told.",
                )


def _frame(*parts: str) -> bytes:
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


def _tombstone_numbers(folder: Path) -> list[int]:
    matches = (_TOMBSTONE_FILE.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def _missing_tombstone_key(number: int) -> KeyMissing:
    return KeyMissing(
        f"The database's tombstones were made with key {number}, and tombstone-{number}.key is not in the key folder.",
        "Restore the file from the backup of LETHE_HOME; until then deleted nodes cannot be told.",
    )
