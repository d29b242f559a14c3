"""One entry of a ledger: what it records, and its encrypted form.

    {"format": …, "number": …, "previous": …, "key": …, "key_id": …, "nonce": …}\n    the header, a line of JSON
    ciphertext                            AES-256-GCM of the record, which authenticates the header too

`previous` is the SHA-256 of the entry before: entries form a chain. Records are padded to multiples of a KiB, so that
the size of an entry does not say how many ids a batch named.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from model_store.tombstones import KEY_BYTES, RecordedTombstone
from service.errors import KeyMissing, StateMismatch

FORMAT = "lethe erasure ledger 1"
#: `previous` of the first entry.
NO_HASH = "0" * 64
_NONCE_BYTES = 12
_PADDED_TO = 1024
#: Added to the code of what joined again, as in the store's own tombstones.
_VOID = 128
_PACKED_BYTES = 32 + KEY_BYTES + 1


@dataclass(frozen=True)
class Record:
    """What the database recorded after the entry before, up to and including one version."""

    model: str
    #: The version: its id (None before the first), number and fencing number.
    version: UUID | None
    number: int
    fencing: int
    #: Deletions, and what joined again (void), of all versions since the entry before.
    tombstones: tuple[RecordedTombstone, ...] = ()
    #: Kinds of the requests of these versions, by id; empty in the first entry.
    requests: Mapping[UUID, str] = field(default_factory=dict)
    #: Leaves of the transparency log, and its root in hex.
    log_size: int = 0
    log_root: str = ""


@dataclass(frozen=True)
class Trimmed:
    """How far a ledger has forgotten its beginning."""

    #: Number of the oldest entry that must still exist.
    first: int = 1
    #: Hash of the entry before `first`, and its version.
    previous: str = NO_HASH
    version: UUID | None = None


@dataclass(frozen=True)
class Entry:
    """An entry that was read or written."""

    number: int
    #: SHA-256 of its bytes, in hex.
    sha256: str
    #: That of the entry before.
    previous: str
    record: Record
    trimmed: Trimmed
    written_at: str


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    number: int
    previous: str
    key: int
    key_id: str
    nonce: str


class _Content(msgspec.Struct):
    model: str
    version: UUID | None
    version_number: int
    fencing: int
    tombstones: str
    requests: dict[UUID, str]
    log_size: int
    log_root: str
    first: int
    first_previous: str
    trimmed_version: UUID | None
    written_at: str


def key_id(key: bytes) -> str:
    """Return a fingerprint of a ledger key, which reveals nothing about it."""
    return hmac.digest(key, b"lethe/ledger-key-fingerprint", hashlib.sha256)[:16].hex()


def seal(
    number: int, previous: str, record: Record, trimmed: Trimmed, written_at: str, keys: Mapping[int, bytes]
) -> tuple[bytes, Entry]:
    """Return the bytes of an entry, encrypted with the newest of `keys`, and the entry."""
    newest = max(keys)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    header = _Header(FORMAT, number, previous, newest, key_id(keys[newest]), nonce.hex())
    content = _Content(
        model=record.model,
        version=record.version,
        version_number=record.number,
        fencing=record.fencing,
        tombstones=base64.b64encode(b"".join(map(_packed, record.tombstones))).decode(),
        requests=dict(record.requests),
        log_size=record.log_size,
        log_root=record.log_root,
        first=trimmed.first,
        first_previous=trimmed.previous,
        trimmed_version=trimmed.version,
        written_at=written_at,
    )
    plain = msgspec.json.encode(content)
    plain += b" " * (-len(plain) % _PADDED_TO)
    line = msgspec.json.encode(header) + b"\n"
    sealed = line + AESGCM(keys[newest]).encrypt(nonce, plain, line)
    return sealed, Entry(number, hashlib.sha256(sealed).hexdigest(), previous, record, trimmed, written_at)


def unseal(sealed: bytes, number: int, keys: Mapping[int, bytes], place: str) -> Entry:
    """Return the entry with this number.

    Raises KeyMissing if its key is not among `keys`, and StateMismatch if the entry was altered.
    """
    line, newline, ciphertext = sealed.partition(b"\n")
    try:
        header = msgspec.json.decode(line, type=_Header)
        nonce = bytes.fromhex(header.nonce)
    except (msgspec.DecodeError, ValueError):
        raise altered(place, number) from None
    if header.format != FORMAT or header.number != number or len(nonce) != _NONCE_BYTES:
        raise altered(place, number)
    key = keys.get(header.key)
    if key is None or key_id(key) != header.key_id:
        raise KeyMissing(
            f"Entry {number} of the erasure ledger {place} was encrypted with another key {header.key} than that in "
            f"the key folder: the ledger belongs to another home, or the file ledger-{header.key}.key is missing.",
            "Set LETHE_LEDGER to this home's ledger, or put its keys, which you keep outside the home, into "
            "LETHE_HOME/keys/unlearner.",
        )
    try:
        plain = AESGCM(key).decrypt(nonce, ciphertext, line + newline)
        content = msgspec.json.decode(plain.rstrip(b" "), type=_Content)
        packed = base64.b64decode(content.tombstones)
    except (InvalidTag, msgspec.DecodeError, ValueError):
        raise altered(place, number) from None
    record = Record(
        content.model,
        content.version,
        content.version_number,
        content.fencing,
        tuple(_unpacked(packed[start : start + _PACKED_BYTES]) for start in range(0, len(packed), _PACKED_BYTES)),
        content.requests,
        content.log_size,
        content.log_root,
    )
    trimmed = Trimmed(content.first, content.first_previous, content.trimmed_version)
    return Entry(number, hashlib.sha256(sealed).hexdigest(), header.previous, record, trimmed, content.written_at)


def altered(place: str, number: int) -> StateMismatch:
    """Return the error for an entry that is not as it was written."""
    return StateMismatch(
        f"Entry {number} of the erasure ledger {place} was changed after it was written, or is damaged.",
        "Restore this entry from a copy or an earlier version of the object. Without one, begin a new ledger: move it "
        "and the files ledger-*.key of LETHE_HOME/keys/unlearner away.",
    )


def _packed(one: RecordedTombstone) -> bytes:
    return one.hash + one.key + bytes([one.code | _VOID * one.is_void])


def _unpacked(packed: bytes) -> RecordedTombstone:
    code = packed[-1]
    return RecordedTombstone(packed[:32], packed[32:-1], code % _VOID, code >= _VOID)
