"""Encryption of what a request names: AES-256-GCM under the request's own key, bound to the request's id."""

import os
from uuid import UUID

import msgspec
import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from service.domain.records import Targets
from service.errors import InvalidRequest, LetheError

_NONCE_BYTES = 12


class NotDecrypted(LetheError):
    """The encrypted targets of a request cannot be read with the key that is kept for it."""


def encrypt(targets: Targets, key: bytes, request_id: UUID) -> bytes:
    """Return nonce and ciphertext of `targets` under the 32-byte `key`.

    Raises `InvalidRequest` for an id with half of a surrogate pair, which no encoding can hold.
    """
    try:
        plain = orjson.dumps(targets)
    except orjson.JSONEncodeError:
        raise InvalidRequest("An id is not valid Unicode text.", "Remove the unpaired surrogate from it.") from None
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, request_id.bytes)


def decrypt(ciphertext: bytes, key: bytes, request_id: UUID) -> Targets:
    """Return what `encrypt` was given; raises `NotDecrypted` for another key, another request or altered bytes."""
    try:
        plain = AESGCM(key).decrypt(ciphertext[:_NONCE_BYTES], ciphertext[_NONCE_BYTES:], request_id.bytes)
    except (InvalidTag, ValueError):
        raise NotDecrypted(
            f"The encrypted id list of request {request_id} cannot be decrypted with its key.",
            "The key file and the database are from different backups; restore a matching pair.",
        ) from None
    return msgspec.json.decode(plain, type=Targets)
