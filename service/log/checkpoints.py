"""Checkpoints: size and root of the log, signed, as C2SP `tlog-checkpoint` in a C2SP `signed-note`.

A note is text followed by one line per signature. During a key change it carries a signature by each key, so that
verifiers with either key can continue. <https://c2sp.org/tlog-checkpoint>, <https://c2sp.org/signed-note>
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from service.errors import ConfigurationError, LetheError
from service.log.merkle import HASH_BYTES

_ED25519 = b"\x01"
_NAME = re.compile(r"[^\s+]+")
_SIZE = re.compile(r"0|[1-9][0-9]{0,17}")
_DASH = "\N{EM DASH}"


class NotVerified(LetheError):
    """A checkpoint is malformed, or not signed by a trusted key."""


@dataclass(frozen=True)
class VerifierKey:
    """A public key with the name of its log; its text is `<name>+<id in hex>+<key in base64>`."""

    name: str
    #: Ed25519, 32 bytes.
    key: bytes

    @property
    def id(self) -> bytes:
        """Four bytes by which a signature identifies its key."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.key).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{_text(_ED25519 + self.key)}"

    @classmethod
    def parse(cls, text: str) -> "VerifierKey":
        """Parse the text that `str` writes. Raises ConfigurationError."""
        name, _, rest = text.strip().partition("+")
        key_id, _, encoded = rest.partition("+")
        raw = _bytes(encoded) or b""
        key = cls(name, raw[1:])
        if not _NAME.fullmatch(name) or raw[:1] != _ED25519 or len(key.key) != 32 or key.id.hex() != key_id:
            raise ConfigurationError(
                "The text is not the public key of a log.",
                "Give a line such as lethe/0123+89abcdef+AbCd…; `./lethe audit key` prints it.",
            )
        return key

    def verifies(self, signature: bytes, text: bytes) -> bool:
        """Return whether `signature` (64 bytes) is this key's signature of `text`."""
        try:
            Ed25519PublicKey.from_public_bytes(self.key).verify(signature, text)
        except (InvalidSignature, ValueError):
            return False
        return True


class Signer:
    """A private key with the name of its log."""

    def __init__(self, name: str, seed: bytes) -> None:
        """`seed` is the Ed25519 private key (RFC 8032), 32 bytes."""
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = VerifierKey(name, self._key.public_key().public_bytes_raw())

    def sign(self, text: bytes) -> bytes:
        """Return the signature of `text`, 64 bytes."""
        return self._key.sign(text)


@dataclass(frozen=True)
class Checkpoint:
    """Size and root of a tree."""

    #: Name of the log.
    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """The signed text."""
        return f"{self.origin}\n{self.size}\n{_text(self.root)}\n"


def sign(checkpoint: Checkpoint, signers: Sequence[Signer]) -> str:
    """Return `checkpoint` as a note with a signature by each of `signers`."""
    text = checkpoint.text
    lines = [
        f"{_DASH} {signer.public.name} {_text(signer.public.id + signer.sign(text.encode()))}\n" for signer in signers
    ]
    return f"{text}\n{''.join(lines)}"


def read(note: str) -> Checkpoint:
    """Parse a note without verifying signatures. Raises NotVerified if it is not a checkpoint."""
    return _read(_parts(note)[0])


def signers_of(note: str) -> frozenset[bytes]:
    """Return the ids of the keys that a note claims as signers. Raises NotVerified if it is not a note."""
    return frozenset(signature[:4] for _, signature in _parts(note)[1])


def verify(note: str, keys: Collection[VerifierKey]) -> Checkpoint:
    """Return the checkpoint in a note after verifying a signature by one of `keys`.

    Raises NotVerified if it is not a checkpoint, if none of `keys` signed it, or if a signature in the name of one of
    them is invalid.
    """
    text, signatures = _parts(note)
    checkpoint = _read(text)
    known = {(key.name, key.id): key for key in keys}
    signed = False
    for name, signature in signatures:
        key = known.get((name, signature[:4]))
        if key is None:
            continue
        if not key.verifies(signature[4:], text.encode()):
            raise NotVerified(
                f"The checkpoint of size {checkpoint.size} names the key {name}+{key.id.hex()}, which did not sign it.",
                "It was changed or forged.",
            )
        signed |= checkpoint.origin == name
    if not signed:
        raise NotVerified(
            f"The checkpoint of size {checkpoint.size} is not signed by a trusted key.",
            "It belongs to another log, or was signed again with another key. If the operator changed keys, ask "
            "for the new one.",
        )
    return checkpoint


def _parts(note: str) -> tuple[str, list[tuple[str, bytes]]]:
    """Split a note into signed text and signatures with key names; each signature begins with its key's id."""
    text, blank, block = note.rpartition("\n\n")
    if not blank or not block.endswith("\n"):
        raise _malformed()
    signatures = []
    for line in block[:-1].split("\n"):
        dash, _, rest = line.partition(" ")
        name, _, encoded = rest.partition(" ")
        signature = _bytes(encoded)
        if dash != _DASH or not _NAME.fullmatch(name) or signature is None or len(signature) < 5:
            raise _malformed()
        signatures.append((name, signature))
    return text + "\n", signatures


def _read(text: str) -> Checkpoint:
    lines = text.split("\n")
    # A checkpoint may have extension lines after the root. Ours has none, so notes with extensions are refused.
    if len(lines) != 4 or not _NAME.fullmatch(lines[0]) or not _SIZE.fullmatch(lines[1]):
        raise _malformed()
    root = _bytes(lines[2])
    if root is None or len(root) != HASH_BYTES:
        raise _malformed()
    return Checkpoint(lines[0], int(lines[1]), root)


def _malformed() -> NotVerified:
    return NotVerified("The text is not a signed checkpoint.", "Give the unchanged answer of `GET /log/checkpoint`.")


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _bytes(text: str) -> bytes | None:
    """Decode base64 strictly; None for invalid text, including stray bits at its end."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if _text(raw) == text else None
