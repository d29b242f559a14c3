"""Checks by `lethe doctor` of Postgres, Redis and a running Lethe."""

import asyncio
from collections.abc import Sequence

import httpx2

from service.access.keyring import Keyring
from service.cli.database import opened
from service.cli.findings import Finding
from service.db import clock, roles, schema
from service.db.engine import Engine
from service.db.lease import AnotherHome
from service.db.refusal import damage_met
from service.db.transactions import transaction
from service.errors import DatabaseDamaged, KeyMissing, LetheError, Unavailable
from service.processes.key_folder import VaultKeyRepository, home_check, open_request_keys
from service.processes.listening import ServerFacts
from service.queue.connection import version_of
from service.requests.delivery import MOST_UNCLAIMED_S
from service.requests.lookup import RequestRepository
from service.requests.tombstones import TombstoneRepository
from service.settings import Settings

_TIMEOUT_S = 5.0
#: Longest time that LETHE_MAX_WAIT_MS gives a batch to fill (seconds).
_LONGEST_FILL_S = 60.0
_LEASED = "SELECT name FROM leases WHERE expires_at > clock_timestamp() ORDER BY name"


async def postgres(settings: Settings) -> Sequence[Finding]:
    """Check that Postgres answers, has this version's schema, and agrees on the time, the home and its keys.

    Also reports who holds the leases, and requests that need attention.
    """
    url = settings.database_url
    if url is None:
        return [Finding("postgres", None, "private, not running; `./lethe serve` starts it")]
    try:
        async with opened(url) as engine:
            found = await _reachable(engine)
            migrations = await _migrations(url)
            found.append(migrations)
            if migrations.ok:
                found.append(await _keys(engine, settings))
                found.append(await _leases(engine))
                found.append(await _requests(engine))
    except DatabaseDamaged as error:
        return [Finding("postgres", False, error.detail, error.remedy)]
    except LetheError as error:
        return [Finding("postgres", False, error.for_operators, error.remedy)]
    return found


async def login(url: str | None, role: str) -> Finding:
    """Check that the process with `role` has a login without further rights."""
    name = f"login of {role}"
    if url is None:
        text = "none of its own: an attacker who controls that process has all rights of the login in DATABASE_URL"
        return Finding(name, None, text)
    try:
        async with opened(url) as engine:
            may_work = await roles.available(engine, role) is not None
            async with transaction(engine) as connection:
                is_kept = await roles.is_kept_to(connection, role)
    except DatabaseDamaged as error:
        return Finding(name, False, error.detail, error.remedy)
    except Unavailable as error:
        return Finding(name, False, error.for_operators, error.remedy)
    if not may_work:
        return Finding(name, False, f"is not a member of {role}", f"As the tables' owner: GRANT {role} TO that login.")
    if not is_kept:
        text = f"has more rights than {role}: it owns the tables, or is a member of another role"
        return Finding(name, False, text, "Give this process its own login that is a member of only that role.")
    return Finding(name, True, "has no more rights than that process needs")


async def redis(url: str | None) -> Finding:
    """Check that Redis answers."""
    if url is None:
        return Finding("redis", None, "private, not running; `./lethe serve` starts it")
    try:
        found = await version_of(url, socket_timeout_s=_TIMEOUT_S)
    except Unavailable as error:
        return Finding("redis", False, error.for_operators, error.remedy)
    return Finding("redis", True, f"answers, version {found}")


def service(facts: ServerFacts | None) -> list[Finding]:
    """Report a running Lethe's own readiness checks."""
    if facts is None:
        return [Finding("service", None, "not running in this LETHE_HOME")]
    try:
        answer = httpx2.get(f"{facts.url}/readyz", timeout=_TIMEOUT_S).json()
        checks = [
            Finding(f"service: {one['name']}", bool(one["ok"]), str(one["detail"]), str(one["remedy"]))
            for one in answer["checks"]
        ]
    except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
        found = f"process {facts.pid} does not answer at {facts.url}: {error}"
        return [Finding("service", False, found, "Check its log. Restart it if this persists.")]
    return [Finding("service", True, f"process {facts.pid} at {facts.url}"), *checks]


async def _reachable(engine: Engine) -> list[Finding]:
    async with transaction(engine) as connection:
        version = (await connection.exec_driver_sql("SHOW server_version")).scalar_one()
        checksums = (await connection.exec_driver_sql("SHOW data_checksums")).scalar_one()
        damaged = await damage_met(connection)
        found = _clock(await clock.apart(connection))
    if damaged is not None:
        return [Finding("postgres", False, damaged.detail, damaged.remedy), found]
    unseen = "" if checksums == "on" else "; without data checksums, so damage to its files may go undetected"
    return [Finding("postgres", True, f"answers, version {version}{unseen}"), found]


def _clock(apart: float) -> Finding:
    if apart <= clock.MOST_APART_S:
        return Finding("clock", True, f"{apart:.3f} s from Postgres'")
    return Finding("clock", False, f"{apart:.1f} s from Postgres'", "Synchronise both machines (NTP).")


async def _keys(engine: Engine, settings: Settings) -> Finding:
    """Check that home and keys are those that the database relies on; creates none."""
    name, folder = "keys and database", settings.home / "keys"
    check_home = await home_check(settings)
    try:
        async with transaction(engine) as connection:
            await check_home(connection)
            registered = await VaultKeyRepository(connection).registered()
            tombstones = await TombstoneRepository(connection).key_fingerprints()
        if not registered and not tombstones:
            return Finding(name, None, "not used by the database yet")
        keyring = await asyncio.to_thread(Keyring.open, folder, create=False)
        keyring.check(tombstones)
        keyring.check_identities(registered)
        await open_request_keys(engine, folder, keyring)
    except (AnotherHome, KeyMissing) as error:
        return Finding(name, False, error.detail, error.remedy)
    return Finding(name, True, "belong together")


async def _requests(engine: Engine) -> Finding:
    """Check whether requests need attention."""
    columns = ("open", "open_past_deadline", "open_failed")
    asked = f"SELECT {', '.join(f'coalesce(sum({name}), 0)' for name in columns)} FROM audit_open"
    async with transaction(engine) as connection:
        still_open, late, failed = tuple((await connection.exec_driver_sql(asked)).one())
        served = (await connection.exec_driver_sql(_LEASED)).scalars().all()
        oldest = [await RequestRepository(connection).oldest(model) for model in served]
    found = f"{still_open} open, {late} past their deadline, {failed} failed and unhandled"
    stuck = [one for one in oldest if one is not None and one.is_stuck(MOST_UNCLAIMED_S + _LONGEST_FILL_S)]
    if stuck:
        waits_s = max(one.waits_s for one in stuck)
        found += f"; the oldest has been stuck for {waits_s:.0f} s"
    if not late and not failed and not stuck:
        return Finding("requests", True, found)
    if stuck:
        return Finding("requests", False, found, "Check /readyz of the running Lethe, and the unlearner's log.")
    remedy = "See the dashboard. Retry a failed request with `./lethe retry`, or record how it was handled with "
    return Finding("requests", False, found, remedy + "`./lethe handle`.")


async def _migrations(url: str) -> Finding:
    revision, head = await schema.current(url), schema.head()
    if revision == head:
        return Finding("migrations", True, f"at {head}")
    return Finding("migrations", False, f"at {revision or 'none'}, needs {head}", "Run `./lethe migrate`.")


async def _leases(engine: Engine) -> Finding:
    async with transaction(engine) as connection:
        names = list((await connection.exec_driver_sql(_LEASED)).scalars())
    if not names:
        return Finding("lease", None, "not held; nothing is deleted until an unlearner runs")
    return Finding("lease", True, "held for " + ", ".join(names))
