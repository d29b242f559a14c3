"""The first key: generated once, or the operator's own."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from service.access.api_keys import ApiKeyRepository, ensure_first_key, refuse_weak_keys
from service.access.key_memory import key_memory
from service.access.keyring import Keyring
from service.db.engine import Engine, create_engine
from service.db.transactions import transaction
from service.domain.scopes import Scope
from service.errors import ConfigurationError, Unauthenticated
from service.processes.api_process import create_app
from service.processes.key_folder import open_keyring
from service.settings import Settings


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
    key = await key_memory(engine, keyring).authenticate(made)
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
    [text] = [chosen] if chosen else [key for key in made if key is not None]
    assert (await key_memory(engine, keyring).authenticate(text)).scopes == frozenset(Scope)
    async with transaction(engine) as connection:
        assert len(await ApiKeyRepository(connection).list()) == 1


async def test_beyond_this_machine_a_short_or_missing_first_key_is_refused(engine: Engine, keyring: Keyring) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(ConfigurationError, match="LETHE_ADMIN_KEY of fewer than 32 characters"):
            await ensure_first_key(engine, keyring, Settings(host=host, admin_key="12345678"))
        with pytest.raises(ConfigurationError, match="LETHE_ADMIN_KEY is not set") as refused:
            await ensure_first_key(engine, keyring, Settings(host=host))
        assert "openssl rand" in refused.value.remedy
    async with transaction(engine) as connection:
        assert await ApiKeyRepository(connection).list() == []
    assert await ensure_first_key(engine, keyring, Settings(host="0.0.0.0", admin_key="k" * 32)) is None


@pytest.mark.parametrize("later", [None, "k" * 32])
async def test_beyond_this_machine_a_first_key_that_was_shown_must_go(
    engine: Engine, keyring: Keyring, later: str | None
) -> None:
    made = await ensure_first_key(engine, keyring, Settings())
    assert made is not None
    key = await key_memory(engine, keyring).authenticate(made)
    beyond = Settings(host="0.0.0.0", admin_key=later)
    with pytest.raises(ConfigurationError, match="the key 'admin', which was generated") as refused:
        await ensure_first_key(engine, keyring, beyond)
    assert f"keys revoke {key.id}" in refused.value.remedy
    async with transaction(engine) as connection:
        await ApiKeyRepository(connection).create(uuid4(), "made by keys create", list(Scope), bytes(32))
        await ApiKeyRepository(connection).revoke(key.id)
    assert await ensure_first_key(engine, keyring, beyond) is None


async def test_beyond_this_machine_a_short_key_of_an_earlier_start_must_be_set_again(
    engine: Engine, keyring: Keyring
) -> None:
    await ensure_first_key(engine, keyring, Settings(admin_key="12345678"))
    with pytest.raises(ConfigurationError, match="LETHE_ADMIN_KEY, short\\)' of an earlier start"):
        await ensure_first_key(engine, keyring, Settings(host="0.0.0.0"))
    assert await ensure_first_key(engine, keyring, Settings(host="0.0.0.0", admin_key="k" * 32)) is None
    with pytest.raises(Unauthenticated):
        await key_memory(engine, keyring).authenticate("12345678")


@pytest.mark.parametrize("weak", [None, "12345678"])
async def test_who_listens_beyond_this_machine_judges_what_was_made_for_it_alone(
    engine: Engine, database_url: str, redis_url: str, tmp_path: Path, weak: str | None
) -> None:
    keyring = await open_keyring(engine, Settings(home=tmp_path))
    await ensure_first_key(engine, keyring, Settings(admin_key=weak))
    await refuse_weak_keys(engine, "127.0.0.1")
    beyond = Settings(home=tmp_path, host="0.0.0.0", database_url=database_url, redis_url=redis_url)
    app = create_app(beyond)
    with pytest.raises(ConfigurationError, match=r"does not listen on 0\.0\.0\.0 with the key 'admin"):
        async with app.router.lifespan_context(app):
            pass
