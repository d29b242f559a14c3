"""The secrets that webhooks are signed with: each encrypted under one key, which is with the unlearner's alone."""

import base64
import os
import secrets
from pathlib import Path
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from service.errors import KeyMissing
from service.vault import key_files
from service.vault.log_keys import UNLEARNER_PART

_SECRET_BYTES, _NONCE_BYTES = 32, 12


class WebhookSecrets:
    """What is encrypted under `webhooks.key` in the unlearner's part of the key folder `folder`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / UNLEARNER_PART / "webhooks.key"

    def make(self, endpoint_id: UUID, *, first: bool) -> tuple[str, bytes]:
        """Return a new secret as the receiver is given it, `whsec_…`, and encrypted for the endpoint's row.

        The key is made for the `first` endpoint. Raises `KeyMissing`, `ConfigurationError`.
        """
        key_files.secure_folder(self._path.parent, create=first)
        if first and not self._path.exists():
            key_files.create_key(self._path)
        secret, nonce = secrets.token_bytes(_SECRET_BYTES), os.urandom(_NONCE_BYTES)
        encrypted = AESGCM(key_files.read_key(self._path)).encrypt(nonce, secret, endpoint_id.bytes)
        return "whsec_" + base64.b64encode(secret).decode(), nonce + encrypted

    def read(self, endpoint_id: UUID, encrypted: bytes) -> bytes:
        """Return an endpoint's secret; raises `KeyMissing` when the key is gone or another, `ConfigurationError`."""
        key = key_files.read_key(self._path)
        try:
            return AESGCM(key).decrypt(encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:], endpoint_id.bytes)
        except InvalidTag:
            raise KeyMissing(
                f"The file {self._path} is not the key that the webhooks' secrets were encrypted with.",
                "Restore it from the backup of LETHE_HOME, or remove the endpoints and add them again.",
            ) from None
