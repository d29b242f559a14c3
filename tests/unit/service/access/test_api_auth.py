"""The promises of the cache of API keys, with and without Postgres."""

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from uuid import UUID, uuid4

import pytest

from service.access.key_memory import REFRESH_INTERVAL_S, TRUSTED_FOR_S, KeyMemory
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.errors import Unauthenticated, Unavailable

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Table:
    """The table of keys, with a count of its queries."""

    def __init__(self) -> None:
        self.keys: dict[bytes, ApiKey] = {}
        self.asked = 0
        self.down = False
        self.now = 0.0
        self.used: list[UUID] = []
        self.memory = KeyMemory(
            digest,
            self.find,
            self.valid,
            self.record,
            clock=lambda: self.now,
            now=lambda: NOW + timedelta(seconds=self.now),
        )

    def add(self, text: str, *scopes: Scope, expires_at: datetime | None = None) -> ApiKey:
        key = ApiKey(uuid4(), text, frozenset(scopes), NOW, expires_at=expires_at)
        self.keys[digest(text)] = key
        return key

    async def find(self, key_hash: bytes) -> ApiKey | None:
        self._ask()
        key = self.keys.get(key_hash)
        return key if key is not None and key.revoked_at is None else None

    async def valid(self) -> dict[bytes, ApiKey]:
        self._ask()
        return {key_hash: key for key_hash, key in self.keys.items() if key.revoked_at is None}

    def revoke(self, text: str) -> None:
        old = self.keys[digest(text)]
        self.keys[digest(text)] = ApiKey(old.id, old.name, old.scopes, old.created_at, revoked_at=NOW)

    async def record(self, key_ids: Collection[UUID]) -> None:
        self._ask()
        self.used += key_ids

    def _ask(self) -> None:
        self.asked += 1
        if self.down:
            raise Unavailable("Postgres does not answer.", "Try again.")


def digest(text: str) -> bytes:
    return sha256(text.encode()).digest()


@pytest.fixture
def table() -> Table:
    return Table()


async def test_a_key_is_looked_up_once_and_then_remembered(table: Table) -> None:
    key = table.add("one", Scope.PREDICTIONS_READ)
    assert [await table.memory.authenticate("one") for _ in range(3)] == [key] * 3
    assert table.asked == 1


@pytest.mark.parametrize("presented", ["other", "", "x" * 1_000])
async def test_an_unknown_key_is_refused(table: Table, presented: str) -> None:
    table.add("one")
    with pytest.raises(Unauthenticated):
        await table.memory.authenticate(presented)


async def test_a_revoked_key_is_forgotten_by_the_next_refresh(table: Table) -> None:
    table.add("one")
    table.add("two")
    await table.memory.authenticate("one")
    two = await table.memory.authenticate("two")
    table.revoke("one")
    await table.memory.refresh()
    with pytest.raises(Unauthenticated):
        await table.memory.authenticate("one")
    assert table.memory.recall("two") == two


async def test_a_key_expires_by_itself_also_while_postgres_is_away(table: Table) -> None:
    table.add("one", expires_at=NOW + timedelta(seconds=60))
    await table.memory.authenticate("one")
    table.down = True
    table.now = 60
    assert table.memory.recall("one") is not None
    table.now = 61
    assert table.memory.recall("one") is None
    table.down = False
    with pytest.raises(Unauthenticated, match="expired on 2026-01-01"):
        await table.memory.authenticate("one")


async def test_each_use_of_a_key_is_recorded_also_after_an_outage(table: Table) -> None:
    key = table.add("one")
    table.add("other")
    await table.memory.authenticate("one")
    table.down = True
    with pytest.raises(Unavailable):
        await table.memory.record_uses()
    table.down = False
    for _ in range(2):
        await table.memory.record_uses()
    assert table.used == [key.id]
    table.memory.recall("one")
    await table.memory.record_uses()
    assert table.used == [key.id, key.id]


async def test_changed_scopes_are_taken_over_by_the_next_refresh(table: Table) -> None:
    key = table.add("one", Scope.PREDICTIONS_READ)
    await table.memory.authenticate("one")
    table.keys[digest("one")] = ApiKey(key.id, key.name, frozenset({Scope.AUDIT_READ}), NOW)
    await table.memory.refresh()
    assert (await table.memory.authenticate("one")).scopes == {Scope.AUDIT_READ}


async def test_remembered_keys_outlast_an_outage_for_a_while_only(table: Table) -> None:
    key = table.add("one")
    await table.memory.authenticate("one")
    table.down = True
    with pytest.raises(Unavailable):
        await table.memory.refresh()
    table.now = TRUSTED_FOR_S
    assert await table.memory.authenticate("one") == key
    table.now = TRUSTED_FOR_S + 1
    with pytest.raises(Unavailable):
        await table.memory.authenticate("one")


async def test_a_refresh_renews_the_trust_in_a_key(table: Table) -> None:
    key = table.add("one")
    await table.memory.authenticate("one")
    table.now = TRUSTED_FOR_S
    await table.memory.refresh()
    table.now = TRUSTED_FOR_S * 1.5
    assert table.memory.recall("one") == key


async def test_a_key_that_was_never_seen_is_unavailable_during_an_outage(table: Table) -> None:
    table.add("one")
    table.down = True
    with pytest.raises(Unavailable):
        await table.memory.authenticate("one")


async def test_a_key_that_nobody_presented_yet_is_remembered_after_a_refresh(table: Table) -> None:
    key = table.add("one")
    await table.memory.refresh()
    assert table.memory.recall("one") == key


async def test_any_number_of_calls_within_a_second_share_one_look_at_the_table(table: Table) -> None:
    key = table.add("one")
    found = await asyncio.gather(*(table.memory.recall_lately(text) for text in ("one", *map(str, range(500)))))
    assert found == [key] + [None] * 500
    assert table.asked == 1
    later = table.add("later")
    assert await table.memory.recall_lately("later") is None
    table.now = REFRESH_INTERVAL_S
    assert await table.memory.recall_lately("later") == later
    table.down = True
    table.now = 2 * REFRESH_INTERVAL_S
    with pytest.raises(Unavailable):
        await table.memory.recall_lately("unknown")
    assert await table.memory.recall_lately("unknown") is None
    assert table.asked == 3
