"""Open the key folder of a database: never replace lost keys silently, and never serve a copied home."""

import asyncio
import hmac
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.access.key_disposal import RequestKeyRepository
from service.access.keyring import Keyring
from service.access.request_keys import RequestKeys
from service.db.lease import require_home
from service.db.tables import VaultKeyRow
from service.db.transactions import Repository, transaction
from service.errors import ConfigurationError, KeyMissing, StateMismatch
from service.home_id import known_id
from service.log.checkpoints import VerifierKey
from service.log.signed_checkpoints import CheckpointRepository
from service.log.signing_keys import LogKeys, are_there, name_of
from service.private_files import ignore_in_git, write_private
from service.processes.private_servers import owns_database
from service.requests.tombstones import TombstoneRepository
from service.settings import Settings

#: File with the path where the home was last used, so that a copy names its original.
_NOTE = Path("run") / "home"


def require_original(home: Path) -> None:
    """Record the path of `home`; raise StateMismatch if it is a copy and the original still signs the same log.

    A home passes if it was moved, restored over its original, or appears under another path (a bind mount, a
    container): the recorded path then holds nothing, or this home itself. A copy on another machine also passes,
    because it looks like a home that was moved there.
    """
    here, note = home.resolve(), home / _NOTE
    noted = Path(os.fsdecode(note.read_bytes())) if note.exists() else None
    if noted is not None and noted != here and _is_another(noted, here):
        raise StateMismatch(
            f"{here} is a copy of {noted}, which still exists: both would sign the same log with the same key "
            "and contradict each other.",
            f"Start the original instead. To use this copy in its place, move {noted} away or delete it first. For a "
            "separate Lethe, start with a new LETHE_HOME.",
        )
    if noted != here:
        write_private(note, os.fsencode(here))


def _is_another(noted: Path, here: Path) -> bool:
    """Whether `noted` is another home that signs the same log as this one."""
    try:
        name = name_of(here / "keys")
        return not noted.samefile(here) and name is not None and name == name_of(noted / "keys")
    except (OSError, ValueError):
        # Unreadable, or not a path.
        return False


#: Subfolder of the key folder with the keys of id lists.
SLOTS = "requests"
#: Keys whose loss can be accepted.
REPLACEABLE = frozenset({"api-pepper", "body", SLOTS})


class VaultKeyRepository(Repository):
    """The table `vault_keys` in the caller's transaction."""

    async def registered(self) -> dict[str, bytes]:
        """Return the fingerprints of the keys that this database relies on, by name, for `check_identities`."""
        query = select(VaultKeyRow.name, VaultKeyRow.fingerprint)
        return {row.name: row.fingerprint for row in await self._conn.execute(query)}

    async def register(self, fingerprints: Mapping[str, bytes]) -> None:
        """Record keys that this database relies on from now on; existing records stay."""
        rows = [{"name": name, "fingerprint": fingerprint} for name, fingerprint in sorted(fingerprints.items())]
        await self._conn.execute(insert(VaultKeyRow).values(rows).on_conflict_do_nothing())

    async def replace(self, name: str, fingerprint: bytes) -> int:
        """Replace the record of a lost key; returns the number of API keys revoked.

        If the API keys are hashed with it, all valid ones are revoked.
        """
        return int(await self._conn.scalar(select(func.vault_key_replace(name, fingerprint))) or 0)


async def home_check(settings: Settings) -> Callable[[AsyncConnection], Awaitable[None]]:
    """Read this home's id; return a check that raises `AnotherHome` if a migrated database belongs to another home.

    Check before changing the database or checking keys: in another home, following the advice for a lost key would do
    harm. Read before a transaction, because an error of the disk within it would count as an outage of the database.
    """

    def read() -> tuple[bool, str | None]:
        # The unlearner takes over a private database, also in a restored home.
        return owns_database(settings), known_id(settings.home)

    is_private, home = await asyncio.to_thread(read)

    async def check(connection: AsyncConnection) -> None:
        if not is_private:
            await require_home(connection, home)

    return check


async def open_keyring(engine: AsyncEngine, settings: Settings, *, take_over: bool = False) -> Keyring:
    """Open the keys in LETHE_HOME. Create those that this migrated database does not use yet.

    Raises `KeyMissing`, and creates nothing, if a key is missing or differs from the one the database relies on.
    Raises `AnotherHome` first if the database belongs to another home, unless `take_over` is set. Also raises
    `ConfigurationError` and `Unavailable`.
    """
    folder, check_home = settings.home / "keys", await home_check(settings)
    async with transaction(engine) as connection:
        if not take_over:
            await check_home(connection)
        registered = await VaultKeyRepository(connection).registered()
        tombstones = await TombstoneRepository(connection).key_fingerprints()
    known = {*registered, *(f"tombstone-{number}" for number in tombstones)}
    keyring = await asyncio.to_thread(Keyring.open, folder, known=known)
    await asyncio.to_thread(ignore_in_git, settings.home)
    keyring.check(tombstones)
    keyring.check_identities(registered)
    if new := {name: value for name, value in keyring.identities().items() if name not in registered}:
        async with transaction(engine) as connection:
            keys = VaultKeyRepository(connection)
            await keys.register(new)
            # Another process with another key folder may have been first.
            keyring.check_identities(await keys.registered())
    return keyring


async def open_log_keys(engine: AsyncEngine, folder: Path) -> LogKeys:
    """Open the keys that sign the log; create a first one only if this database's log was never signed.

    Raises `KeyMissing`, `Unavailable`, and StateMismatch if LETHE_HOME is a copy of another that signs with them.
    """
    await asyncio.to_thread(require_original, folder.parent)
    async with transaction(engine) as connection:
        registered = await CheckpointRepository(connection).keys()
    return await asyncio.to_thread(_log_keys, folder, registered)


async def open_request_keys(engine: AsyncEngine, folder: Path, keyring: Keyring) -> RequestKeys:
    """Open the keys of id lists, which must include the key of every unfinished request that Lethe accepted.

    Raises `KeyMissing` if one is missing, `ConfigurationError` if others can read them, and `Unavailable`.
    """
    keys = RequestKeys(folder / SLOTS)
    await asyncio.to_thread(keys.check_files)
    if lost := await lost_requests(engine, keys, keyring):
        raise unreadable(keys.folder, len(lost))
    return keys


async def lost_requests(engine: AsyncEngine, keys: RequestKeys, keyring: Keyring) -> set[UUID]:
    """Return the unfinished requests whose keys are missing from `keys`. Raises `Unavailable`.

    Excludes requests that finish meanwhile. Also excludes requests that no process of Lethe accepted: they never had a
    key, and fail when they are processed.
    """
    async with transaction(engine) as connection:
        needed = await RequestKeyRepository(connection).unfinished()
    lacking = await asyncio.to_thread(keys.lacking, needed)
    if not lacking:
        return lacking
    async with transaction(engine) as connection:
        repository = RequestKeyRepository(connection)
        lacking &= (await repository.unfinished()).keys()
        vouchers = await repository.vouchers(lacking)
    return {one for one in lacking if hmac.compare_digest(vouchers[one], keyring.voucher(one))}


async def accept_lost(
    engine: AsyncEngine, settings: Settings, names: Collection[str], *, take_over: bool = False
) -> int:
    """Accept the permanent loss of the keys in `names` and use others; returns the number of API keys revoked.

    Uses the keys found in LETHE_HOME under these names, and creates missing ones. Raises `ConfigurationError` for an
    irreplaceable key, `KeyMissing` if others are missing, and the other errors of `open_keyring`.
    """
    if wrong := sorted(set(names) - REPLACEABLE):
        raise ConfigurationError(
            f"The key {wrong[0]} cannot be replaced.",
            f"Replaceable keys: {', '.join(sorted(REPLACEABLE))}. Restore others from the backup.",
        )
    check_home = await home_check(settings)
    async with transaction(engine) as connection:
        if not take_over:
            await check_home(connection)
        keys = VaultKeyRepository(connection)
        registered = await keys.registered()
        known = {*registered, *(f"tombstone-{n}" for n in await TombstoneRepository(connection).key_fingerprints())}
        keyring = await asyncio.to_thread(Keyring.open, settings.home / "keys", known=known - set(names))
        own = keyring.identities()
        revoked = 0
        for name in sorted(own.keys() & set(names)):
            if registered.get(name) == own[name]:
                continue
            revoked += await keys.replace(name, own[name])
    return revoked


def _log_keys(folder: Path, registered: Mapping[int, VerifierKey]) -> LogKeys:
    if registered and not are_there(folder):
        LogKeys(registered[max(registered)].name, {}).check(registered)
    keys = LogKeys.open(folder, create=not registered)
    keys.check(registered)
    return keys


def unreadable(folder: Path, requests: int) -> KeyMissing:
    """Build the error for queued requests whose keys are not in the files of `folder`."""
    counted = "One request is" if requests == 1 else f"{requests} requests are"
    what = "lacks their keys" if folder.exists() else "is missing"
    return KeyMissing(
        f"{counted} queued whose encrypted ids cannot be read: {folder} {what}.",
        "Restore it from the backup of LETHE_HOME that belongs to this database. If it is lost for good, "
        f"`./lethe recover --accept-lost {SLOTS}` marks these requests as failed; they must be sent again.",
    )
