"""The first key: generated once, or the operator's own."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from service.api.auth import key_memory
from service.db.api_keys import ApiKeyRepository
from service.db.engine import Engine, create_engine
from service.db.transactions import transaction
from service.domain.states import Scope
from service.errors import ConfigurationError, Unauthenticated
from service.first_key import ensure_first_key
from service.settings import Settings
from service.vault.keyring import Keyring


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[Engine]:
    engine = create_engine(database_url)
    yield engine
    await engine.dispose()


@pytest.fixture
def keyring(tmp_path: Path) -> Keyring:
    return Keyring.open(tmp_path / "keys")


async def test_one_is_generated_once_and_has_all_scopes(engine: Engine, keyring: Keyring) -> None:
    made = await ensure_first_key(engine, keyring, Settings())
    assert made is not None
    key = await key_memory(engine, keyring).authenticate(made.text)
    assert key.scopes == frozenset(Scope)
    assert await ensure_first_key(engine, keyring, Settings()) is None


async def test_the_operators_key_is_made_valid_in_place_of_the_one_before(engine: Engine, keyring: Keyring) -> None:
    first, second = Settings(admin_key="chosen by me"), Settings(admin_key="chosen later")
    for settings in (first, first, second):
        assert await ensure_first_key(engine, keyring, settings) is None
    assert (await key_memory(engine, keyring).authenticate("chosen later")).scopes == frozenset(Scope)
    with pytest.raises(Unauthenticated):
        await key_memory(engine, keyring).authenticate("chosen by me")
    with pytest.raises(ConfigurationError, match="revoked"):
        await ensure_first_key(engine, keyring, first)
    assert (await key_memory(engine, keyring).authenticate("chosen later")).revoked_at is None


@pytest.mark.parametrize(("chosen", "asked"), [(None, "list"), ("chosen by me", "find_by_hash")])
async def test_of_two_processes_that_start_at_once_one_makes_it(
    engine: Engine, keyring: Keyring, monkeypatch: pytest.MonkeyPatch, chosen: str | None, asked: str
) -> None:
    find, both, calls = getattr(ApiKeyRepository, asked), asyncio.Barrier(2), itertools.count(1)

    async def neither_finds_any(keys: ApiKeyRepository, *arguments: bytes) -> object:
        found = await find(keys, *arguments)
        if next(calls) <= 2:
            await both.wait()
        return found

    settings = Settings(admin_key=chosen)
    with monkeypatch.context() as patched:
        patched.setattr(ApiKeyRepository, asked, neither_finds_any)
        made = await asyncio.gather(*(ensure_first_key(engine, keyring, settings) for _ in range(2)))
    [text] = [chosen] if chosen else [key.text for key in made if key is not None]
    assert (await key_memory(engine, keyring).authenticate(text)).scopes == frozenset(Scope)
    async with transaction(engine) as connection:
        assert len(await ApiKeyRepository(connection).list()) == 1


async def test_the_operators_key_leaves_generated_ones_alone(engine: Engine, keyring: Keyring) -> None:
    made = await ensure_first_key(engine, keyring, Settings())
    assert made is not None
    await ensure_first_key(engine, keyring, Settings(admin_key="chosen by me"))
    assert (await key_memory(engine, keyring).authenticate(made.text)).revoked_at is None
    async with transaction(engine) as connection:
        assert len(await ApiKeyRepository(connection).list()) == 2
