"""The long-lived keys of an installation, and the keyed hashes made with them.

All hashes are HMAC-SHA-256. Inputs are framed (each part preceded by its length), so no two different inputs share an
encoding.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from uuid import UUID

from service import private_files
from service.domain.kinds import Part, RequestKind, Target, removing
from service.errors import KeyMissing
from service.log.commitments import SALT_BYTES

_TOMBSTONE_FILE = re.compile(r"tombstone-([1-9][0-9]*)\.key")
#: A salt is random bytes followed by a tag.
_SALT_TAG_BYTES = 8
_SALT_RANDOM_BYTES = SALT_BYTES - _SALT_TAG_BYTES
#: Keys that cannot be replaced silently, with the consequence of a new one.
_IDENTIFIED = {
    "api-pepper": "every API key would be refused",
    "body": "repeated requests and used salts would not be recognised",
}


class Keyring:
    """The keys in `LETHE_HOME/keys`: tombstone keys by number, the pepper of API keys, body and cursor keys."""

    def __init__(
        self, folder: Path, tombstone_keys: Mapping[int, bytes], api_pepper: bytes, body_key: bytes, cursor_key: bytes
    ) -> None:
        self._folder = folder
        self._tombstone_keys = dict(sorted(tombstone_keys.items()))
        self._api_pepper = api_pepper
        self._body_key = body_key
        #: Signs the cursors of result pages.
        self.cursor_key = cursor_key

    @classmethod
    def open(cls, folder: Path, *, create: bool = True, known: Collection[str] = ()) -> "Keyring":
        """Read the keys in `folder`; if `create` is true, first create the missing ones.

        `known` names the keys that a database relies on, such as "tombstone-1". These are never created.

        Raises `KeyMissing` naming an absent or damaged file, and `ConfigurationError` when other users may read one.
        """
        private_files.secure_folder(folder, create=create and not known)
        files = {*(path.name for path in folder.iterdir()), *(f"{name}.key" for name in known)}
        numbers = _numbers(files) or [1]
        names = ["api-pepper", "body", "cursor", *(f"tombstone-{number}" for number in numbers)]
        for name in names:
            path = folder / f"{name}.key"
            if path.exists():
                continue
            if name in known:
                raise _lost(path, name)
            if create:
                private_files.create_key(path)
        keys = {name: private_files.read_key(folder / f"{name}.key") for name in names}
        return cls(
            folder,
            {number: keys[f"tombstone-{number}"] for number in numbers},
            keys["api-pepper"],
            keys["body"],
            keys["cursor"],
        )

    def api_key_hash(self, text: str) -> bytes:
        """Return the 32-byte hash under which an API key is stored."""
        return hmac.digest(self._api_pepper, _frame("lethe/api-key", text), hashlib.sha256)

    def subject_hash(self, issuer: str, subject: str) -> bytes:
        """Return the 32-byte hash under which a subject of an OpenID Connect issuer is stored.

        Keyed, because a plain digest would let a reader of the database guess who it is.
        """
        return hmac.digest(self._api_pepper, _frame("lethe/oidc-subject", issuer, subject), hashlib.sha256)

    def session_hash(self, token: str) -> bytes:
        """Return the 32-byte hash under which a dashboard session is stored."""
        return hmac.digest(self._api_pepper, _frame("lethe/session", token), hashlib.sha256)

    def body_digest(self, body: bytes) -> bytes:
        """Return the 32-byte digest that distinguishes a repeated `Idempotency-Key` from a reused one.

        Keyed, because a plain digest of a short body would let a reader of the database guess the ids in it.
        """
        return hmac.digest(self._body_key, body, hashlib.sha256)

    def new_salt(self) -> str:
        """Return a new salt in hex: random bytes, and a tag by which `has_made` recognises it without a record."""
        drawn = secrets.token_bytes(_SALT_RANDOM_BYTES)
        return (drawn + self._salt_tag(drawn)).hex()

    def has_made(self, salt: str) -> bool:
        """Return whether `new_salt` made this salt."""
        raw = bytes.fromhex(salt)
        return hmac.compare_digest(raw[_SALT_RANDOM_BYTES:], self._salt_tag(raw[:_SALT_RANDOM_BYTES]))

    def salt_hash(self, salt: str) -> bytes:
        """Return the 32-byte hash that identifies a caller's salt when it is used again.

        Keyed, because a caller may draw its salts badly: a plain digest would let a reader of the database guess them.
        """
        return hmac.digest(self._body_key, _frame("lethe/given-salt", salt), hashlib.sha256)

    def voucher(self, request_id: UUID) -> bytes:
        """Return the 32 bytes that prove that Lethe accepted a request, which therefore had its own key.

        Write access to the database is not enough to forge them.
        """
        return hmac.digest(self._body_key, _frame("lethe/accepted", request_id.hex), hashlib.sha256)

    def _salt_tag(self, drawn: bytes) -> bytes:
        return hmac.digest(self._body_key, _frame("lethe/own-salt", drawn.hex()), hashlib.sha256)[:_SALT_TAG_BYTES]

    def tombstone_hash(
        self, model: str, kind: RequestKind, target: Target, number: int | None = None
    ) -> tuple[int, bytes]:
        """Return the key number (the newest by default) and the 32-byte tombstone of a node or edge.

        Raises `KeyMissing` when no key has that number.
        """
        chosen = max(self._tombstone_keys) if number is None else number
        if chosen not in self._tombstone_keys:
            raise _missing_tombstone_key(chosen)
        parts = sorted(target) if isinstance(target, tuple) else [target]
        message = _frame("lethe/tombstone", model, kind.value, *parts)
        return chosen, hmac.digest(self._tombstone_keys[chosen], message, hashlib.sha256)

    def tombstone_hashes(self, model: str, part: Part, targets: Iterable[Target]) -> dict[bytes, Target]:
        """Return every hash that may record `part` of one of `targets` as deleted, with its target.

        There is one for each kind that removes the part and each key number.
        """
        return {
            self.tombstone_hash(model, kind, target, number)[1]: target
            for target in targets
            for kind in removing(part)
            for number in self._tombstone_keys
        }

    def fingerprints(self) -> dict[int, bytes]:
        """Return a 16-byte fingerprint by key number; it distinguishes tombstone keys and reveals nothing else."""
        message = _frame("lethe/tombstone-key-fingerprint")
        return {number: hmac.digest(key, message, hashlib.sha256)[:16] for number, key in self._tombstone_keys.items()}

    def identities(self) -> dict[str, bytes]:
        """Return a 16-byte fingerprint by name for each key, besides tombstone keys, that a database relies on."""
        message = _frame("lethe/key-fingerprint")
        keys = {"api-pepper": self._api_pepper, "body": self._body_key}
        return {name: hmac.digest(key, message, hashlib.sha256)[:16] for name, key in keys.items()}

    def check_identities(self, registered: Mapping[str, bytes]) -> None:
        """Raise `KeyMissing` unless these keys are the ones that the database has relied on so far."""
        own = self.identities()
        for name, fingerprint in sorted(registered.items()):
            if name in own and not hmac.compare_digest(own[name], fingerprint):
                raise KeyMissing(
                    f"The file {name}.key is not the key of this database: {_IDENTIFIED[name]}.",
                    f"Restore the key folder that belongs to this database. {_accept(name)}",
                )

    def check_files(self) -> None:
        """Read the disk and raise `KeyMissing` unless the key folder still holds the same keys."""
        named = {
            "api-pepper": self._api_pepper,
            "body": self._body_key,
            "cursor": self.cursor_key,
            **{f"tombstone-{number}": key for number, key in self._tombstone_keys.items()},
        }
        for name, key in named.items():
            path = self._folder / f"{name}.key"
            if not hmac.compare_digest(private_files.read_key(path), key):
                raise KeyMissing(
                    f"The key file {path} was changed while Lethe runs.", "Restore it from the backup of LETHE_HOME."
                )

    def check(self, registered: Mapping[int, bytes]) -> None:
        """Raise `KeyMissing` unless every tombstone key that the database refers to is present and unchanged."""
        own = self.fingerprints()
        for number, fingerprint in sorted(registered.items()):
            if number not in own:
                raise _missing_tombstone_key(number)
            if not hmac.compare_digest(own[number], fingerprint):
                raise KeyMissing(
                    f"The file tombstone-{number}.key is not the key that made the database's tombstones.",
                    "Restore the key folder that belongs to this database; until then, deleted and unknown nodes "
                    "look the same.",
                )


def _frame(*parts: str) -> bytes:
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


def _numbers(file_names: Iterable[str]) -> list[int]:
    matches = (_TOMBSTONE_FILE.fullmatch(name) for name in file_names)
    return sorted(int(match[1]) for match in matches if match)


def _lost(path: Path, name: str) -> KeyMissing:
    if name in _IDENTIFIED:
        return KeyMissing(
            f"The key file {path} is missing, and this database depends on it: with a new one {_IDENTIFIED[name]}.",
            f"Restore it from the backup of LETHE_HOME. {_accept(name)}",
        )
    return KeyMissing(
        f"The key file {path} is missing, and the tombstones of this database depend on it.",
        "Restore it from the backup of LETHE_HOME; until then, deleted and unknown nodes look the same.",
    )


def _accept(name: str) -> str:
    return f"If the key is lost for good, `./lethe recover --accept-lost {name}` continues with a new one."


def _missing_tombstone_key(number: int) -> KeyMissing:
    return KeyMissing(
        f"The database's tombstones were made with key {number}, and tombstone-{number}.key is not in the key folder.",
        "Restore the file from the backup of LETHE_HOME; until then, deleted and unknown nodes look the same.",
    )
