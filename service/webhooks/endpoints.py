"""Receivers of webhooks, and their signing secrets."""

import base64
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import func, insert, null, select, update

from service import private_files
from service.db.tables import WebhookDeliveryRow, WebhookEndpointRow
from service.db.transactions import Repository
from service.errors import ConfigurationError, KeyMissing
from service.log.signing_keys import UNLEARNER_PART
from service.webhooks.feed import FeedRepository

_LONGEST_URL = 2000


@dataclass(frozen=True)
class Endpoint:
    """One receiver."""

    id: UUID
    url: str
    #: Encrypted; None once removed.
    secret: bytes | None
    created_at: datetime
    removed_at: datetime | None = None
    #: Reason for the removal.
    removal: str | None = None


def checked_url(url: str) -> str:
    """Return `url`. Raises `ConfigurationError` unless it can be a receiver's address, wherever it leads."""
    if len(url) > _LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigurationError(
            f"The address is not a URL of at most {_LONGEST_URL} ASCII characters.",
            "Encode other characters: punycode in the host, % in the path.",
        )
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        # The look-up also encodes the name, and fails for labels over 63 characters.
        (parts.hostname or "").encode("idna")
    except ValueError:
        known = False
    if not known:
        raise ConfigurationError(f"{url!r} is not an HTTP address.", "Give one such as https://dsr.example/lethe.")
    if parts.username is not None or parts.fragment:
        raise ConfigurationError(
            "The address has a user or a fragment, which is not sent.",
            "Omit it: the signature identifies the sender.",
        )
    return url


class EndpointRepository(Repository):
    """The table `webhook_endpoints` in the caller's transaction."""

    async def add(self, endpoint_id: UUID, url: str, secret: bytes) -> None:
        """Record an endpoint with its encrypted secret. It receives events published from now on."""
        await self._conn.execute(insert(WebhookEndpointRow).values(id=endpoint_id, url=url, secret=secret))

    async def list(self) -> Sequence[Endpoint]:
        """Return all endpoints, oldest first, including removed ones."""
        query = select(WebhookEndpointRow.__table__)
        query = query.order_by(WebhookEndpointRow.created_at, WebhookEndpointRow.id)
        return [Endpoint(*row) for row in await self._conn.execute(query)]

    async def get(self, endpoint_id: UUID) -> Endpoint | None:
        """Return an active endpoint; None if unknown or removed."""
        query = select(WebhookEndpointRow.__table__).where(WebhookEndpointRow.id == endpoint_id)
        row = (await self._conn.execute(query.where(WebhookEndpointRow.removed_at.is_(None)))).one_or_none()
        return None if row is None else Endpoint(*row)

    async def due(self) -> Sequence[Endpoint]:
        """Return endpoints with deliveries due now."""
        waiting = (
            select(WebhookDeliveryRow.id)
            .where(WebhookDeliveryRow.endpoint_id == WebhookEndpointRow.id)
            .where(WebhookDeliveryRow.next_attempt_at <= func.now())
        )
        query = select(WebhookEndpointRow.__table__).where(WebhookEndpointRow.removed_at.is_(None), waiting.exists())
        return [Endpoint(*row) for row in await self._conn.execute(query)]

    async def remove(self, endpoint_id: UUID, why: str) -> bool:
        """Stop sending to an endpoint and drop its secret; return False if it was not active."""
        # Exclude concurrent publishers, which would list deliveries that nobody sends or gives up.
        await FeedRepository(self._conn).exclude_publishers()
        removed = (
            update(WebhookEndpointRow)
            .where(WebhookEndpointRow.id == endpoint_id, WebhookEndpointRow.removed_at.is_(None))
            .values(removed_at=func.now(), removal=why, secret=null())
        )
        if not (await self._conn.execute(removed)).rowcount:
            return False
        given_up = (
            update(WebhookDeliveryRow)
            .where(WebhookDeliveryRow.endpoint_id == endpoint_id, WebhookDeliveryRow.next_attempt_at.is_not(None))
            .values(next_attempt_at=null(), given_up_at=func.now(), answer=why)
        )
        await self._conn.execute(given_up)
        return True


_SECRET_BYTES, _NONCE_BYTES = 32, 12


class WebhookSecrets:
    """Secrets encrypted under `webhooks.key` in the unlearner's part of the key folder `folder`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / UNLEARNER_PART / "webhooks.key"

    def make(self, endpoint_id: UUID, *, first: bool) -> tuple[str, bytes]:
        """Return a new secret in the receiver's form, `whsec_…`, and encrypted for the endpoint's row.

        The `first` endpoint creates the key. Raises `KeyMissing`, `ConfigurationError`.
        """
        private_files.secure_folder(self._path.parent, create=first)
        if first and not self._path.exists():
            private_files.create_key(self._path)
        secret, nonce = secrets.token_bytes(_SECRET_BYTES), os.urandom(_NONCE_BYTES)
        encrypted = AESGCM(private_files.read_key(self._path)).encrypt(nonce, secret, endpoint_id.bytes)
        return "whsec_" + base64.b64encode(secret).decode(), nonce + encrypted

    def read(self, endpoint_id: UUID, encrypted: bytes) -> bytes:
        """Return an endpoint's secret. Raises `KeyMissing` for a lost or wrong key, and `ConfigurationError`."""
        key = private_files.read_key(self._path)
        try:
            return AESGCM(key).decrypt(encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:], endpoint_id.bytes)
        except InvalidTag:
            raise KeyMissing(
                f"The file {self._path} is not the key that the webhooks' secrets were encrypted with.",
                "Restore it from the backup of LETHE_HOME, or remove the endpoints and add them again.",
            ) from None
