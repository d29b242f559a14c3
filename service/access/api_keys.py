"""API keys, identified by a hash, and the first key: set by the operator or generated at the first start."""

import builtins
import secrets
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from pydantic import SecretStr
from sqlalchemy import ColumnElement, DateTime, Row, Text, column, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.exc import IntegrityError

from service.access.keyring import Keyring
from service.db.access_tables import ApiKeyRow, ApiKeyUseRow
from service.db.engine import Engine
from service.db.transactions import Repository, transaction
from service.domain.addresses import is_loopback
from service.domain.kinds import RequestKind
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.errors import ConfigurationError, Conflict, Unavailable
from service.settings import Settings

_TIME = DateTime(timezone=True)


@dataclass(frozen=True)
class NewApiKey:
    """A new key; `text` is shown once and never stored."""

    id: UUID
    text: str


def new_api_key(key_id: UUID | None = None) -> NewApiKey:
    """Return a key with 256 random bits; given an id, another text for that key."""
    key_id = key_id or uuid.uuid4()
    return NewApiKey(id=key_id, text=f"{prefix_of(key_id)}{secrets.token_urlsafe(32)}")


def prefix_of(key_id: UUID) -> str:
    """Return the beginning of the text of a key that Lethe made, by which its holder can recognise it."""
    return f"lethe_{key_id.hex[:8]}_"


def is_valid() -> ColumnElement[bool]:
    """Return the condition that a row of `api_keys` is neither revoked nor expired."""
    return ApiKeyRow.revoked_at.is_(None) & or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > func.now())


class ApiKeyRepository(Repository):
    """The table `api_keys` in the caller's transaction."""

    async def create(
        self,
        key_id: UUID,
        name: str,
        scopes: Collection[Scope],
        key_hash: bytes,
        *,
        kinds: Collection[RequestKind] = (),
        expires_at: datetime | None = None,
    ) -> ApiKey:
        """Record a key; without `kinds` it may make requests of all kinds, without `expires_at` it does not expire.

        Raises `Conflict` when an unrevoked key has the name, or this key already exists.
        """
        row = insert(ApiKeyRow).values(
            id=key_id,
            name=name,
            scopes=sorted(scope.value for scope in scopes),
            kinds=sorted(kind.value for kind in kinds) or None,
            hash=key_hash,
            expires_at=expires_at,
        )
        made = (await self._conn.execute(row.on_conflict_do_nothing().returning(ApiKeyRow.__table__))).one_or_none()
        if made is None:
            raise Conflict(
                f"An API key with the name {name} or this value exists already.",
                "Choose another name, or revoke the existing key.",
            )
        return api_key(made)

    async def find_by_hash(self, key_hash: bytes) -> ApiKey | None:
        """Return the key with this hash, also if it has expired; None when unknown or revoked.

        If the hash is that of a text that was replaced, the key expires when that text does.
        """
        query = select(ApiKeyRow.__table__).where(
            or_(ApiKeyRow.hash == key_hash, ApiKeyRow.previous_hash == key_hash),
            ApiKeyRow.revoked_at.is_(None),
            # An answering process can record a subject, and must not be able to make a key.
            ApiKeyRow.is_subject.is_(False),
        )
        row = (await self._conn.execute(query)).one_or_none()
        return None if row is None else _by_hash(row).get(key_hash)

    async def list(self) -> builtins.list[ApiKey]:
        """Return all keys with their last use, oldest first, including revoked ones."""
        query = (
            select(ApiKeyRow.__table__, ApiKeyUseRow.used_at)
            .outerjoin(ApiKeyUseRow, ApiKeyUseRow.api_key_id == ApiKeyRow.id)
            .order_by(ApiKeyRow.created_at, ApiKeyRow.id)
        )
        return [replace(api_key(row), used_at=row.used_at) for row in await self._conn.execute(query)]

    async def valid(self) -> dict[bytes, ApiKey]:
        """Return all valid keys, by the hash of each of their valid texts."""
        rows = await self._conn.execute(select(ApiKeyRow.__table__).where(is_valid()))
        now = datetime.now(UTC)
        return {key_hash: key for row in rows for key_hash, key in _by_hash(row).items() if not key.has_expired(now)}

    async def rotate(
        self, key_id: UUID, key_hash: bytes, *, overlap: timedelta, expires_at: datetime | None
    ) -> ApiKey | None:
        """Give a key another text, and accept the current one for `overlap` longer; an earlier one ends at once.

        Returns None when the key is unknown or revoked.
        """
        rotated = (
            update(ApiKeyRow)
            .where(ApiKeyRow.id == key_id, ApiKeyRow.revoked_at.is_(None))
            .values(
                hash=key_hash,
                previous_hash=ApiKeyRow.hash,
                # It outlives neither its own expiry nor the key's new one. LEAST ignores nulls.
                previous_until=func.least(func.now() + overlap, ApiKeyRow.expires_at, literal(expires_at, _TIME)),
                expires_at=expires_at,
            )
            .returning(ApiKeyRow.__table__)
        )
        row = (await self._conn.execute(rotated)).one_or_none()
        return None if row is None else api_key(row)

    async def record_subject(self, subject_hash: bytes, scopes: Collection[Scope]) -> ApiKey | None:
        """Record that a token of this subject was verified and grants `scopes`; it is then valid for a day.

        Returns None when the subject is revoked. Raises Unavailable when the last start did not allow these scopes.
        """
        names = literal(sorted(scope.value for scope in scopes), ARRAY(Text()))
        recorded = func.oidc_subject(subject_hash, names).table_valued(
            *(column(one.name, one.type) for one in ApiKeyRow.__table__.columns)
        )
        try:
            row = (await self._conn.execute(select(recorded))).one_or_none()
        except IntegrityError:
            raise Unavailable(
                "The database was prepared with another LETHE_OIDC_GRANTS.",
                "Restart `./lethe serve`, or its role `prepare`, with the current one.",
            ) from None
        return None if row is None else api_key(row)

    async def subject_id(self, subject_hash: bytes) -> UUID | None:
        """Return the id of a subject of the issuer; None if no token of it was seen."""
        query = select(ApiKeyRow.id).where(ApiKeyRow.hash == subject_hash, ApiKeyRow.is_subject)
        return await self._conn.scalar(query)

    async def record_uses(self, key_ids: Collection[UUID]) -> None:
        """Record that these keys were used within the last minute."""
        # A restored database may lack a key that was valid a moment ago.
        known = select(ApiKeyRow.id).where(ApiKeyRow.id.in_(key_ids)).order_by(ApiKeyRow.id)
        used = insert(ApiKeyUseRow).from_select(["api_key_id"], known)
        used = used.on_conflict_do_update(index_elements=["api_key_id"], set_={"used_at": func.now()})
        await self._conn.execute(used)

    async def revoke(self, key_id: UUID) -> ApiKey | None:
        """Revoke a key and return it; None when unknown. Idempotent."""
        revoked = (
            update(ApiKeyRow)
            .where(ApiKeyRow.id == key_id)
            .values(revoked_at=func.coalesce(ApiKeyRow.revoked_at, func.now()))
            .returning(ApiKeyRow.__table__)
        )
        row = (await self._conn.execute(revoked)).one_or_none()
        return None if row is None else api_key(row)


def api_key(row: Row[*tuple[Any, ...]]) -> ApiKey:
    """Return the key in a row of `api_keys`."""
    return ApiKey(
        row.id,
        row.name,
        frozenset(map(Scope, row.scopes)),
        row.created_at,
        revoked_at=row.revoked_at,
        expires_at=row.expires_at,
        kinds=None if row.kinds is None else frozenset(map(RequestKind, row.kinds)),
        previous_until=row.previous_until,
        is_subject=row.is_subject,
    )


def _by_hash(row: Row[*tuple[Any, ...]]) -> dict[bytes, ApiKey]:
    """Return the key once for each of its texts, with the time at which that text expires."""
    key = api_key(row)
    found = {row.hash: key}
    if row.previous_hash is not None:
        found[row.previous_hash] = replace(key, expires_at=row.previous_until)
    return found


_GENERATED_NAME = "admin"
_CHOSEN_NAME = "admin (LETHE_ADMIN_KEY)"
#: The name marks a short key for later checks that do not see the key itself: only this machine may use it.
_SHORT_NAME = "admin (LETHE_ADMIN_KEY, short)"
#: Names of keys whose text the operator chose.
CHOSEN_NAMES = frozenset({_CHOSEN_NAME, _SHORT_NAME})
#: Names reserved for first keys, because startup checks identify restricted keys by name alone.
RESERVED_NAMES = CHOSEN_NAMES | {_GENERATED_NAME}
#: Minimum length of an operator's key if other machines can reach the service: 128 bits in hexadecimal.
_LONG = 32
_MAKE_ONE = "Set LETHE_ADMIN_KEY to one from `openssl rand -hex 32`."


async def ensure_first_key(engine: Engine, keyring: Keyring, settings: Settings) -> str | None:
    """Ensure that a key with all scopes exists; return its text only if this call generated it.

    If LETHE_ADMIN_KEY is set, that key becomes valid and replaces the one set before. If it is unset and the database
    has no valid key, a key is generated.

    Raises:
        ConfigurationError: LETHE_ADMIN_KEY is a revoked key. Or other machines can reach the service, and the first key
            is short, missing, or was generated and shown.
        Unavailable: Postgres does not answer.
    """
    chosen = settings.admin_key
    async with transaction(engine) as connection:
        keys = ApiKeyRepository(connection)
        now = datetime.now(UTC)
        valid = [one for one in await keys.list() if not (one.revoked_at or one.has_expired(now) or one.is_subject)]
        if not is_loopback(settings.host):
            _refuse_weak(settings, {key.name: key for key in valid})
        if chosen is None:
            if valid:
                return None
            made = new_api_key()
            try:
                await keys.create(made.id, _GENERATED_NAME, list(Scope), keyring.api_key_hash(made.text))
            except Conflict:
                # Another process that started at the same moment created one.
                return None
            return made.text
        chosen_hash = keyring.api_key_hash(chosen.get_secret_value())
        found = await keys.find_by_hash(chosen_hash)
        if found is not None and found.has_expired(datetime.now(UTC)):
            raise ConfigurationError("LETHE_ADMIN_KEY is an expired key.", _MAKE_ONE)
        for key in valid:
            if key.name in CHOSEN_NAMES and (found is None or key.id != found.id):
                await keys.revoke(key.id)
        if found is not None:
            return None
        try:
            await keys.create(uuid4(), _SHORT_NAME if _is_short(chosen) else _CHOSEN_NAME, list(Scope), chosen_hash)
        except Conflict:
            if await keys.find_by_hash(chosen_hash) is not None:
                return None
            raise ConfigurationError(
                "LETHE_ADMIN_KEY is a revoked key.", "Set it to another key, or unset it and use a valid key."
            ) from None
    return None


async def refuse_weak_keys(engine: Engine, host: str) -> None:
    """Check the first key against `host`, which may differ from the host at the key's creation.

    Raises ConfigurationError when other machines can reach `host` and a first key is short or was shown.
    """
    if is_loopback(host):
        return
    async with transaction(engine) as connection:
        keys = await ApiKeyRepository(connection).list()
    _refuse_weak_ones(host, {key.name: key for key in keys if key.revoked_at is None})


def refuse_weak_first_start(settings: Settings) -> None:
    """Raise ConfigurationError where `ensure_first_key` is sure to, before a database exists to check."""
    may_have_keys = settings.database_url is not None or (settings.home / "keys").exists()
    if not is_loopback(settings.host) and not (settings.admin_key is None and may_have_keys):
        _refuse_weak(settings, {})


def _refuse_weak(settings: Settings, valid: Mapping[str, ApiKey]) -> None:
    """Raise ConfigurationError if the first key is too weak for access from other machines."""
    where = f"Lethe does not listen on {settings.host} with"
    if settings.admin_key is None:
        if not valid:
            raise ConfigurationError(f"{where}out a first key: LETHE_ADMIN_KEY is not set.", _MAKE_ONE)
    elif _is_short(settings.admin_key):
        raise ConfigurationError(
            f"{where} a LETHE_ADMIN_KEY of fewer than {_LONG} characters.",
            f"{_MAKE_ONE} Or listen on 127.0.0.1.",
        )
    # A key in the settings replaces the previous one.
    replaced = () if settings.admin_key is None else (_SHORT_NAME,)
    _refuse_weak_ones(settings.host, {name: key for name, key in valid.items() if name not in replaced})


def _refuse_weak_ones(host: str, valid: Mapping[str, ApiKey]) -> None:
    where = f"Lethe does not listen on {host} with"
    if _SHORT_NAME in valid:
        raise ConfigurationError(
            f"{where} the key {_SHORT_NAME!r} of an earlier start, which has fewer than {_LONG} characters.",
            f"{_MAKE_ONE} Or revoke it: `./lethe keys revoke {valid[_SHORT_NAME].id}`.",
        )
    if _GENERATED_NAME in valid:
        raise ConfigurationError(
            f"{where} the key {_GENERATED_NAME!r}, which was generated at the first start and shown.",
            f"{_MAKE_ONE} And revoke the other: `./lethe keys revoke {valid[_GENERATED_NAME].id}`.",
        )


def _is_short(key: SecretStr) -> bool:
    return len(key.get_secret_value()) < _LONG
