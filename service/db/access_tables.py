"""The tables of API keys and of sessions on the dashboard."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, Text, false, func
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from service.db.tables import Base


class ApiKeyRow(Base):
    """An API key, identified by the hash of its text."""

    __tablename__ = "api_keys"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text()))
    #: Kinds of request that it may make; None for all.
    kinds: Mapped[list[str] | None] = mapped_column(ARRAY(Text()))
    hash: Mapped[bytes] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    #: The text that the last rotation replaced, and until when it is still valid.
    previous_hash: Mapped[bytes | None] = mapped_column(unique=True)
    previous_until: Mapped[datetime | None]
    #: Of the OpenID Connect issuer: `hash` is of issuer and subject, and no text authenticates it.
    is_subject: Mapped[bool] = mapped_column(server_default=false())


class ApiKeyUseRow(Base):
    """The last use of an API key."""

    __tablename__ = "api_key_uses"

    api_key_id: Mapped[UUID] = mapped_column(ForeignKey("api_keys.id"), primary_key=True)
    #: To a minute. Set by a trigger.
    used_at: Mapped[datetime] = mapped_column(server_default=func.now())


class SessionRow(Base):
    """A sign-in to the dashboard, identified by the keyed hash of its token."""

    __tablename__ = "sessions"

    token_hash: Mapped[bytes] = mapped_column(primary_key=True)
    key_id: Mapped[UUID] = mapped_column(ForeignKey("api_keys.id"))
    started_at: Mapped[datetime] = mapped_column(server_default=func.now())
    #: Time of last use, to a minute.
    seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
