"""keys, migrate and doctor against real servers."""

import asyncio
import importlib
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from sqlalchemy import make_url

from service.access.api_keys import ApiKeyRepository
from service.access.keyring import Keyring
from service.access.own_slots import OwnSlots
from service.cli import findings
from service.cli.findings import Finding
from service.db import lease, schema
from service.db.clock import MOST_APART_S, least_apart
from service.db.engine import create_engine
from service.db.transactions import transaction
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.log.signing_keys import LogKeys
from service.processes.listening import ServerFacts
from service.processes.private_servers import PrivateServers
from tests.support.clients.command_line import CommandLine
from tests.support.clients.lethe_stub import LetheStub
from tests.support.service.db_harness import MODEL, open_database

READS = ("--scope", "predictions:read")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def lethe(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    home: Path,
    empty_database_url: str,
    redis_url: str,
) -> CommandLine:
    monkeypatch.setenv("LETHE_HOME", str(home))
    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("COLUMNS", "200")
    home.mkdir()
    return CommandLine(capsys)


def facts(home: Path, url: str) -> bytes:
    """Return the facts that a running service publishes about itself."""
    return msgspec.json.encode(ServerFacts(os.getpid(), url, str(home / "model"), datetime.now(UTC), {}))


def key_of(database_url: str, home: Path, text: str) -> ApiKey | None:
    async def find() -> ApiKey | None:
        engine = create_engine(database_url)
        try:
            async with transaction(engine) as connection:
                return await ApiKeyRepository(connection).find_by_hash(Keyring.open(home / "keys").api_key_hash(text))
        finally:
            await engine.dispose()

    return asyncio.run(find())


def test_a_created_key_opens_what_it_was_made_for_until_it_is_revoked(
    lethe: CommandLine, home: Path, empty_database_url: str
) -> None:
    made = lethe("keys", "create", "shop", "--scope", "predictions:read", "--scope", "deletions:write")
    text = made.stdout.strip()
    key = key_of(empty_database_url, home, text)
    assert key is not None
    assert key.scopes == {Scope.PREDICTIONS_READ, Scope.DELETIONS_WRITE}
    listed = lethe("keys", "list").stdout
    assert str(key.id) in listed
    assert text not in listed
    assert lethe("keys", "revoke", key.id).status == 0
    assert key_of(empty_database_url, home, text) is None
    assert str(key.id) in lethe("keys", "list").stdout


def test_a_key_expires_in_a_year_by_default_and_is_rotated_under_its_name(
    lethe: CommandLine, home: Path, empty_database_url: str
) -> None:
    def listed() -> dict[str, dict[str, Any]]:
        return {key["name"]: key for key in json.loads(lethe("keys", "list", "--json").stdout)["keys"]}

    first = lethe("keys", "create", "shop", *READS, "--kind", "node").stdout.strip()
    assert lethe("keys", "create", "watcher", *READS, "--never").status == 0
    assert lethe("keys", "create", "x", *READS, "--never", "--expires-after", 3).status == 2
    keys = listed()
    days = (datetime.fromisoformat(keys["shop"]["expires_at"]) - datetime.now(UTC)).days
    assert (days, keys["watcher"]["expires_at"], keys["shop"]["state"]) == (364, None, "valid")
    assert keys["shop"]["kinds"] == ["node"]
    assert first.startswith(keys["shop"]["prefix"])
    rotated = lethe("keys", "rotate", keys["shop"]["id"], "--expires-after", 3)
    assert "previous text is accepted until" in rotated.stderr
    for shown in (first, rotated.stdout.strip()):
        key = key_of(empty_database_url, home, shown)
        assert key is not None
        assert str(key.id) == keys["shop"]["id"]
    assert listed()["shop"]["state"] == "expires soon"


def test_a_name_in_use_and_an_unknown_key_are_failures(lethe: CommandLine) -> None:
    assert lethe("keys", "create", "shop", *READS).status == 0
    again = lethe("keys", "create", "shop", *READS)
    assert (again.status, again.stdout) == (4, "")
    assert "shop" in again.stderr
    unknown = lethe("keys", "revoke", "0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11")
    assert unknown.status == 3
    assert "./lethe keys list" in unknown.stderr


@pytest.mark.parametrize("name", ["admin", "admin (LETHE_ADMIN_KEY)", "admin (LETHE_ADMIN_KEY, short)"])
def test_a_name_by_which_a_start_knows_a_first_key_is_refused(lethe: CommandLine, name: str) -> None:
    ran = lethe("keys", "create", name, *READS)
    assert (ran.status, ran.stdout) == (2, "")
    assert "Choose another name" in ran.stderr


def test_migrating_brings_an_empty_database_to_head_once(lethe: CommandLine, empty_database_url: str) -> None:
    first = lethe("migrate")
    assert first.status == 0
    assert schema.head() in first.stdout
    assert asyncio.run(schema.current(empty_database_url)) == schema.head()
    assert "already" in lethe("migrate").stdout


def test_a_database_of_before_the_first_release_is_refused(lethe: CommandLine, empty_database_url: str) -> None:
    async def made_before() -> None:
        connection = await asyncpg.connect(empty_database_url)
        await connection.execute("CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY)")
        await connection.execute("INSERT INTO alembic_version VALUES ('0.15.0')")
        await connection.close()

    asyncio.run(made_before())
    for command in (["migrate"], ["keys", "list"]):
        refused = lethe(*command)
        assert refused.status == 1
        assert "the schema 0.15.0, of a Lethe before its first release" in refused.stderr
        assert "an empty database" in refused.stderr


def test_a_database_that_does_not_answer_is_a_failure(lethe: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    ran = lethe("keys", "list")
    assert (ran.status, ran.stdout) == (5, "")
    assert "database" in ran.stderr


def rows(printed: str) -> dict[str, str]:
    """Return the doctor's results, by subject."""
    lines = [line for line in printed.splitlines() if "  " in line.strip()]
    return {line.split("  ")[0]: " ".join(line.split("  ")[1:]).strip() for line in lines}


def test_a_doctor_in_a_healthy_place_finds_nothing_wrong(lethe: CommandLine) -> None:
    lethe("migrate")
    ran = lethe("doctor")
    found = rows(ran.stdout)
    assert (ran.status, ran.stderr) == (0, "")
    for name in ("python", "packages", "device", "disk space", "postgres", "clock", "migrations", "redis"):
        assert found[name].startswith("ok"), name
    for name in ("keys", "model", "lease", "service"):
        assert found[name].startswith("-"), name


def test_a_doctor_names_a_queue_that_stands_still(lethe: CommandLine, empty_database_url: str, tmp_path: Path) -> None:
    async def stand_still() -> None:
        async with open_database(empty_database_url, tmp_path / "other") as db:
            await db.accept()
            assert await lease.acquire(db.engine, MODEL, "a test", 600.0)
            ago = "now() - interval '5 min'"
            await db.rows(f"UPDATE requests SET received_at = {ago}, queued_at = {ago}")
            await db.rows(f"UPDATE leases SET phase = 'serving', serving_since = {ago}")

    lethe("migrate")
    asyncio.run(stand_still())
    ran = lethe("doctor")
    assert ran.status == 1
    assert "the oldest has been stuck for 3" in " ".join(ran.stdout.split())
    assert "requests: Check /readyz of the running Lethe" in ran.stderr


def test_a_doctor_says_what_the_logins_of_processes_can_do(
    lethe: CommandLine, empty_database_url: str, private_servers: PrivateServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[str]:
        said = rows(lethe("doctor").stdout)
        return [said[f"login of {role}"] for role in ("lethe_api", "lethe_unlearner")]

    def own(url: str | None) -> str:
        assert url is not None
        there = make_url(empty_database_url).database
        return make_url(url).set(database=there).render_as_string(hide_password=False)

    lethe("migrate")
    assert all(one.startswith("-") and "none of its own" in one for one in found())
    monkeypatch.setenv("LETHE_API_DATABASE_URL", own(private_servers.api_database_url))
    monkeypatch.setenv("LETHE_UNLEARNER_DATABASE_URL", own(private_servers.unlearner_database_url))
    assert all(one.startswith("ok") for one in found())
    monkeypatch.setenv("LETHE_API_DATABASE_URL", empty_database_url)
    monkeypatch.setenv("LETHE_UNLEARNER_DATABASE_URL", own(private_servers.api_database_url))
    of_api, of_unlearner = found()
    assert "wrong" in of_api
    assert "has more rights than lethe_api" in of_api
    assert "is not a member of lethe_unlearner" in of_unlearner
    strange = make_url(empty_database_url).set(username="lethe_api", password="wrong")
    monkeypatch.setenv("LETHE_API_DATABASE_URL", strange.render_as_string(hide_password=False))
    assert 'password authentication failed for user "lethe_api"' in found()[0]


def test_a_doctor_names_what_is_wrong_and_what_to_do(
    lethe: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("LETHE_DEVICE", "cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (home / "model").mkdir()
    Keyring.open(home / "keys")
    (home / "keys" / "api-pepper.key").unlink()
    ran = lethe("doctor")
    found = rows(ran.stdout)
    assert ran.status == 1
    for name in ("redis", "device", "model", "keys", "migrations"):
        assert found[name].startswith("wrong"), name
        assert f"{name}: " in ran.stderr
    assert "./lethe migrate" in ran.stderr


def test_a_doctor_notices_keys_that_are_not_the_databases(lethe: CommandLine, home: Path) -> None:
    assert lethe("keys", "create", "shop", *READS).status == 0
    assert rows(lethe("doctor").stdout)["keys and database"].startswith("ok")
    (home / "keys" / "api-pepper.key").write_text("ab" * 32)
    ran = lethe("doctor")
    assert rows(ran.stdout)["keys and database"].startswith("wrong")
    assert "--accept-lost api-pepper" in ran.stderr


def test_a_doctor_misses_the_keys_of_requests_also_while_the_servers_are_down(
    lethe: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Keyring.open(home / "keys")
    assert rows(lethe("doctor").stdout)["keys"].startswith("ok")
    LogKeys.open(home / "keys", create=True)
    for name in ("DATABASE_URL", "REDIS_URL"):
        monkeypatch.delenv(name)
    ran = lethe("doctor")
    assert ran.status == 1
    assert rows(ran.stdout)["keys"].startswith("wrong")
    assert "requests is missing" in ran.stdout
    assert "Restore it" in ran.stderr
    OwnSlots.open(home / "keys" / "requests").close()
    assert rows(lethe("doctor").stdout)["keys"].startswith("ok")


def test_a_doctor_without_postgres_still_looks_at_the_rest(lethe: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    ran = lethe("doctor")
    found = rows(ran.stdout)
    assert ran.status == 1
    assert found["postgres"].startswith("wrong")
    assert found["redis"].startswith("ok")


def test_a_doctor_starts_no_servers(lethe: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL")
    monkeypatch.delenv("REDIS_URL")
    ran = lethe("doctor")
    assert ran.status == 0
    assert rows(ran.stdout)["postgres"].startswith("-")
    assert list(home.iterdir()) == []


def test_a_doctor_asks_a_running_service_for_its_readiness(lethe: CommandLine, home: Path) -> None:
    checks = [
        {"name": "lease", "ok": True, "detail": "held", "remedy": ""},
        {"name": "unlearner", "ok": False, "detail": "it has ended", "remedy": "Look into its log."},
    ]
    with LetheStub({("GET", "/readyz"): (503, {"status": 503, "checks": checks})}) as stub:
        (home / "run").mkdir()
        (home / "run" / "server.json").write_bytes(facts(home, stub.url))
        ran = lethe("doctor")
    found = rows(ran.stdout)
    assert found["service"].startswith("ok")
    assert found["service: lease"].startswith("ok")
    assert found["service: unlearner"].startswith("wrong")
    assert "Look into its log." in ran.stderr


def test_a_process_that_does_not_answer_is_wrong(lethe: CommandLine, home: Path) -> None:
    (home / "run").mkdir()
    (home / "run" / "server.json").write_bytes(facts(home, "http://127.0.0.1:1"))
    assert rows(lethe("doctor").stdout)["service"].startswith("wrong")


def test_clocks_apart_are_wrong_and_the_time_of_asking_is_not() -> None:
    noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    answered = noon + timedelta(seconds=8)
    assert least_apart(noon, noon + timedelta(seconds=4), answered) == 0
    assert least_apart(noon, answered + timedelta(seconds=4), answered) == 4 < MOST_APART_S
    for there in (noon - timedelta(seconds=6), answered + timedelta(seconds=6)):
        assert least_apart(noon, there, answered) == 6 > MOST_APART_S


PINS = ("torch==2.13.0", "httpx2==0.0.1", "no-such-package==1.0")


def test_packages_that_differ_from_their_pins_are_named(tmp_path: Path) -> None:
    (tmp_path / "lethe").touch()
    (tmp_path / "requirements.txt").write_text("\n".join(("# a comment", *PINS[:2])))
    (tmp_path / "requirements-downloads.txt").touch()
    (tmp_path / "requirements-tables.txt").write_text(PINS[2])
    found = findings.packages(tmp_path)
    assert found.ok is False
    assert "httpx2" in found.found
    assert "no-such-package absent instead of 1.0" in found.found
    assert "torch" not in found.found
    assert "./lethe" in found.remedy


def test_packages_of_an_installed_wheel_are_compared_with_what_it_requires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert findings.packages(tmp_path).ok is False

    about = tmp_path / "lethe_service-0.1.0.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("\n".join(("Name: lethe-service", "Version: 0.1.0", *(f"Requires-Dist: {pin}" for pin in PINS))))
    importlib.invalidate_caches()
    found = findings.packages(tmp_path)
    assert found.ok is False
    assert "httpx2" in found.found
    assert "no-such-package absent instead of 1.0" in found.found
    assert "torch" not in found.found
    assert "a new environment" in found.remedy

    extra = "Provides-Extra: more\nRequires-Dist: no-such-package==1.0; extra == 'more'\n"
    about.write_text(f"Name: lethe-service\nVersion: 0.1.0\nRequires-Dist: torch==2.13.0\n{extra}")
    assert findings.packages(tmp_path) == Finding("packages", True, "all 1 as pinned")
