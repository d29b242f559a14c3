"""API keys, known by the hash of their text."""

import builtins
import hmac
from collections.abc import Collection
from typing import Any
from uuid import UUID

from sqlalchemy import Row, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.tables import ApiKeyRow
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.errors import Conflict


class ApiKeyRepository:
    """The table `api_keys` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def create(self, key_id: UUID, name: str, scopes: Collection[Scope], key_hash: bytes) -> ApiKey:
        """Record a key; raises `Conflict` when one that is not revoked has the name, or the key is known."""
        row = insert(ApiKeyRow).values(
            id=key_id, name=name, scopes=sorted(scope.value for scope in scopes), hash=key_hash
        )
        made = (await self._conn.execute(row.on_conflict_do_nothing().returning(ApiKeyRow.__table__))).one_or_none()
        if made is None:
            raise Conflict(
                f"There is an API key named {name}, or this very key is known.",
                "Choose another name, or revoke the existing key.",
            )
        return api_key(made)

    async def find_by_hash(self, key_hash: bytes) -> ApiKey | None:
        """Return the key with this hash, None when it is unknown or revoked."""
        query = select(ApiKeyRow.__table__).where(ApiKeyRow.hash == key_hash, ApiKeyRow.revoked_at.is_(None))
        row = (await self._conn.execute(query)).one_or_none()
        if row is None or not hmac.compare_digest(row.hash, key_hash):
            return None
        return api_key(row)

    async def get(self, key_id: UUID) -> ApiKey | None:
        """Return a key by its id, also a revoked one; None when it is unknown."""
        row = (await self._conn.execute(select(ApiKeyRow.__table__).where(ApiKeyRow.id == key_id))).one_or_none()
        return None if row is None else api_key(row)

    async def list(self) -> builtins.list[ApiKey]:
        """Return all keys, oldest first, the revoked ones included."""
        query = select(ApiKeyRow.__table__).order_by(ApiKeyRow.created_at, ApiKeyRow.id)
        return [api_key(row) for row in await self._conn.execute(query)]

    async def valid(self) -> dict[bytes, ApiKey]:
        """Return all keys that are not revoked, by hash."""
        query = select(ApiKeyRow.__table__).where(ApiKeyRow.revoked_at.is_(None))
        return {row.hash: api_key(row) for row in await self._conn.execute(query)}

    async def revoke(self, key_id: UUID) -> ApiKey | None:
        """Revoke a key and return it, None when it is unknown; a second time changes nothing."""
        revoked = (
            update(ApiKeyRow)
            .where(ApiKeyRow.id == key_id)
            .values(revoked_at=func.coalesce(ApiKeyRow.revoked_at, func.now()))
            .returning(ApiKeyRow.__table__)
        )
        row = (await self._conn.execute(revoked)).one_or_none()
        return None if row is None else api_key(row)


def api_key(row: Row[*tuple[Any, ...]]) -> ApiKey:
    """The key of a row with the columns of `api_keys`."""
    scopes = frozenset(Scope(scope) for scope in row.scopes)
    return ApiKey(row.id, row.name, scopes, row.created_at, row.revoked_at)
