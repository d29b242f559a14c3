"""The text of an API key: `lethe_<first 8 hex digits of its id>_<43 random url-safe characters>`."""

import secrets
import uuid
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True)
class NewApiKey:
    """A key just made; `text` is shown once and never stored."""

    id: UUID
    text: str


def new_api_key() -> NewApiKey:
    """Return a key with 256 random bits."""
    key_id = uuid.uuid4()
    return NewApiKey(id=key_id, text=f"lethe_{key_id.hex[:8]}_{secrets.token_urlsafe(32)}")
