"""Children restart after they die, stop in order, and end with their supervisor however it ends."""

import errno
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import structlog

from service.cli.child import main as child_main
from service.cli.server import read_facts
from service.errors import AlreadyRunning, ConfigurationError, KeyMissing, LetheError, Unavailable
from service.predictions.layout import Layout, in_use
from service.private_files import write_private
from service.processes import serving
from service.processes.child_process import Child, ChildProcess
from service.processes.listening import ServerFacts, facts_path, facts_paths, own_number
from service.processes.private_servers.home import Home, HomeLock
from service.processes.serving import child, default_workers, end_orphans, settings_for
from service.processes.supervisor import Stage
from service.settings import Settings
from tests.support.preloaded import ROOT
from tests.support.processes import supervised
from tests.support.processes.imported import imported_with
from tests.support.processes.supervised import stub

#: Longer than any test takes.
PATIENCE_S = 600.0


class Supervised:
    """A supervisor of stubs, and their output."""

    def __init__(self, home: Path, plan: dict[str, Any]) -> None:
        command = [sys.executable, "-P", supervised.__file__, json.dumps(plan), str(home)]
        self._log = home.with_suffix(".log")
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                env={"PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.lines: list[str] = []

    def until(self, *wanted: str) -> list[str]:
        """Read until every pattern has matched a new line. Returns the lines read."""
        missing, read = list(wanted), []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            read.append(line.rstrip())
            missing = [pattern for pattern in missing if not re.fullmatch(pattern, read[-1])]
            if not missing:
                self.lines += read
                return read
        raise AssertionError(f"{missing} did not come; only {self.lines + read}, and {self.log()}")

    def end(self) -> tuple[int, list[str]]:
        """Read until no process writes any more. Returns the supervisor's status and the lines read."""
        assert self.process.stdout is not None
        read = [line.rstrip() for line in self.process.stdout]
        self.lines += read
        self.process.stdout.close()
        return self.process.wait(), read

    def pids(self) -> dict[str, int]:
        """Return the process ids last reported by the supervisor."""
        found: dict[str, int] = json.loads([line for line in self.lines if line.startswith("pids ")][-1][5:])
        return found

    def log(self) -> str:
        return self._log.read_text()


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    """Return a function that starts a supervisor of stages, each with its seconds of grace and its children's
    behaviour.
    """
    started: list[Supervised] = []

    def start(*stages: tuple[float, dict[str, str]], **plan: Any) -> Supervised:
        started.append(Supervised(tmp_path / "home", {"stages": stages, **plan} if stages else plan))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.end()


SERVING = ((PATIENCE_S, {"api-0": "serve", "api-1": "serve"}), (PATIENCE_S, {"unlearner": "serve"}))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_are_stopped_in_order_and_only_by_the_supervisor(
    supervise: Callable[..., Supervised], number: signal.Signals
) -> None:
    supervised = supervise(*SERVING)
    supervised.until("all are ready")
    # Like Ctrl-C: the terminal's whole process group.
    os.killpg(supervised.process.pid, number)
    status, lines = supervised.end()
    assert status == 0
    assert sorted(lines[:2]) == ["api-0 got SIGTERM", "api-1 got SIGTERM"]
    assert lines[2:] == ["unlearner got SIGTERM"]


@pytest.mark.parametrize("name", ["api-1", "unlearner"])
def test_what_dies_is_started_again_and_the_others_go_on(supervise: Callable[..., Supervised], name: str) -> None:
    supervised = supervise(*SERVING)
    supervised.until("all are ready")
    before = supervised.pids()
    for _ in range(2):
        os.kill(supervised.pids()[name], signal.SIGKILL)
        supervised.until("pids .*", f"{name} is ready")
    after = supervised.pids()
    assert after.pop(name) != before.pop(name)
    assert after == before
    assert f"{name} was ended by SIGKILL; starting it again" in supervised.log()


def test_a_full_disk_ends_nothing_and_the_ids_are_written_when_there_is_room(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    supervised = supervise(*SERVING)
    supervised.until("all are ready")
    before = supervised.pids()
    (tmp_path / "home" / "full").touch()
    os.kill(before["api-0"], signal.SIGKILL)
    supervised.until("api-0 is ready")
    assert "the ids of the processes cannot be written (No space left on device)" in supervised.log()
    (tmp_path / "home" / "full").unlink()
    supervised.until("pids .*")
    after = supervised.pids()
    assert after.pop("api-0") != before.pop("api-0")
    assert after == before


def test_what_cannot_start_ends_all_with_its_status(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise((PATIENCE_S, {"api-0": "wait"}), (PATIENCE_S, {"unlearner": "refuse"}))
    status, lines = supervised.end()
    assert status == 2
    # A child that had not started yet reports nothing.
    events = [line for line in lines if "started" not in line and not line.startswith("pids")]
    assert events in (["api-0 got SIGTERM"], [])


def test_what_fails_by_what_may_pass_before_it_was_ready_is_started_again_and_the_others_go_on(
    supervise: Callable[..., Supervised],
) -> None:
    supervised = supervise((PATIENCE_S, {"api-0": "fail"}), (PATIENCE_S, {"unlearner": "wait"}))
    supervised.until("unlearner started .*", "api-0 started .*")
    supervised.until("api-0 started .*")
    supervised.process.terminate()
    assert supervised.end()[0] == 0
    assert "api-0 ended with status 75; starting it again" in supervised.log()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unavailable("No database.", "Wait."), 75),
        (KeyError("node-17"), 75),
        (OSError(errno.ENOSPC, "No space left on device", "/home/keys"), 75),
        (OSError(errno.EMFILE, "Too many open files", "/home/keys"), 75),
        (OSError(errno.EROFS, "Read-only file system", "/home/keys"), 1),
        (PermissionError(errno.EACCES, "Permission denied", "/home/keys"), 4),
        (KeyMissing("A key is gone.", "Restore it."), 1),
        (ConfigurationError("A port is taken.", "Choose another."), 2),
    ],
)
def test_the_status_of_a_child_shows_whether_the_next_start_may_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, status: int
) -> None:
    def answer(*_: object) -> None:
        raise error

    ours, theirs = socket.socketpair()
    bound = socket.create_server(("127.0.0.1", 0))
    settings = Settings(home=tmp_path).as_handover()
    message = {"work": "api", "settings": settings, "listener": bound.detach(), "restarts": 0}
    monkeypatch.setattr("service.processes.api_process.run", answer)
    monkeypatch.setattr("service.cli.child.configure_logging", lambda *_, **__: None)
    # Another test's configuration may write to standard error.
    structlog.reset_defaults()
    monkeypatch.setattr(sys, "argv", ["service.cli.child", "api-0", str(theirs.detach())])
    with ours:
        ours.sendall(json.dumps(message).encode() + b"\n")
        with pytest.raises(SystemExit) as ended:
            child_main()
    assert ended.value.code == status
    said = capsys.readouterr().err
    assert (error.detail in said) if isinstance(error, LetheError) else ("node-17" not in said)


def test_what_does_not_stop_in_its_time_is_killed_and_the_others_are_stopped_in_order(
    supervise: Callable[..., Supervised],
) -> None:
    supervised = supervise((0.1, {"api-0": "stay"}), (PATIENCE_S, {"unlearner": "serve"}))
    supervised.until("all are ready")
    supervised.process.terminate()
    assert supervised.end() == (0, ["unlearner got SIGTERM"])
    assert "api-0 did not stop within 0.1 s and is killed" in supervised.log()


def test_a_signal_to_stop_ends_draining(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise(*SERVING, drain=PATIENCE_S)
    supervised.until("all are ready")
    supervised.process.send_signal(signal.SIGUSR2)
    supervised.until("api-0 got SIGUSR1", "api-1 got SIGUSR1")
    supervised.process.terminate()
    status, lines = supervised.end()
    assert status == 0
    # The unlearner drains after the stage before it has ended, or not at all.
    assert sorted(lines) == ["api-0 got SIGTERM", "api-1 got SIGTERM", "unlearner got SIGTERM"]


def test_a_takeover_does_not_delay_a_stop_that_came_first(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise(*SERVING, drain=PATIENCE_S)
    supervised.until("all are ready")
    # Python handles pending signals in the order of their numbers.
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGUSR2, signal.SIGCONT):
        supervised.process.send_signal(number)
    status, lines = supervised.end()
    assert status == 0
    assert sorted(lines) == ["api-0 got SIGTERM", "api-1 got SIGTERM", "unlearner got SIGTERM"]


def test_what_is_frozen_does_not_keep_the_supervisor_from_stopping(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise((0.1, {"api-0": "serve"}))
    supervised.until("all are ready")
    os.kill(supervised.pids()["api-0"], signal.SIGSTOP)
    supervised.process.terminate()
    assert supervised.end() == (0, [])


def test_all_end_with_a_supervisor_that_is_killed(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise((PATIENCE_S, {"api-0": "serve", "api-1": "stay"}), (PATIENCE_S, {"unlearner": "wait"}))
    supervised.until("api-0 is ready", "api-1 is ready", "unlearner started .*")
    supervised.process.kill()
    # Their output ends with the last of them.
    assert supervised.end()[0] == -signal.SIGKILL


def test_a_child_that_hangs_up_is_not_listened_to_any_more() -> None:
    process = ChildProcess(stub("api-0", "hang up"))
    process.start()
    assert process.channel is not None
    select.select([process.channel], [], [])
    process.listen()
    # A closed channel stays readable forever, and would keep the supervisor busy.
    assert process.channel is None
    assert not process.ready
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


def test_secrets_go_by_the_channel_and_nothing_is_inherited_but_two_sockets(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    supervised = supervise((PATIENCE_S, {"api-0": "show"}))
    line = supervised.until("api-0 shows .*")[-1]
    seen = json.loads(line.removeprefix("api-0 shows "))
    assert seen["message"]["secret"] == "tell nobody"
    assert "tell nobody" not in json.dumps([seen["arguments"], seen["environment"]])
    # The supervisor holds the home's lock meanwhile.
    with pytest.raises(AlreadyRunning):
        HomeLock(Home(tmp_path / "home"))
    assert set(seen["open"]) == {seen["arguments"][-1], str(seen["message"]["listener"])}
    assert all(name.startswith("socket:") for name in seen["open"].values())


def test_a_child_for_one_thing_that_fails_ends_the_supervisor_with_its_status(
    supervise: Callable[..., Supervised],
) -> None:
    status, lines = supervise(once="refuse", grace=PATIENCE_S).end()
    assert (status, "done" in lines) == (2, False)


def test_a_child_for_one_thing_is_stopped_with_the_supervisor(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise(once="wait", grace=PATIENCE_S)
    supervised.until("once started .*")
    supervised.process.terminate()
    assert supervised.end() == (0, ["once got SIGTERM"])


def test_starts_come_later_after_each_end_in_a_row() -> None:
    process = ChildProcess(stub("api-0", "serve"))

    def delay(ran_s: float) -> float:
        process._started_at = time.monotonic() - ran_s
        return process.schedule_restart()

    delays = [delay(1.0) for _ in range(10)]
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (0.1, 5.0)
    assert delay(60.0) == delays[0]
    assert delay(1.0) == delays[1]


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 1), (3, 2), (4, 3), (5, 4), (64, 4)])
def test_one_core_is_left_to_the_unlearner(cores: int, workers: int) -> None:
    assert default_workers(cores) == workers


def test_the_supervisor_needs_neither_torch_nor_database_nor_web_stack() -> None:
    [found] = imported_with(["service.cli.serve", "service.processes.serving"])
    heavy = {"torch", "scipy", "numpy", "sqlalchemy", "asyncpg", "alembic", "redis", "fastapi", "starlette", "uvicorn"}
    assert found & heavy == set()


SECRETS: dict[str, Any] = {
    "database_url": "postgresql://lethe:of-the-database@db/lethe",
    "redis_url": "redis://:of-redis@db",
    "admin_key": "of-the-administrator",
}


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """The children that a supervisor would keep running; none is started."""
    children = list[Child]()

    class Kept:
        def __init__(self, stages: list[Stage], **_: object) -> None:
            children.extend(one for stage in stages for one in stage.children)

        def stop(self) -> None: ...

        def run(self) -> None: ...

    monkeypatch.setattr(serving, "run_once", lambda *_: None)
    monkeypatch.setattr(serving, "Supervisor", Kept)
    monkeypatch.setattr(serving, "configure_logging", lambda *_, **__: None)
    return children


@pytest.mark.parametrize(
    ("role", "ran", "names"),
    [
        (None, ["prepare"], ["api-0", "api-1", "unlearner"]),
        ("prepare", ["prepare"], []),
        ("api", [], ["api-0", "api-1"]),
        ("unlearner", [], ["unlearner"]),
        ("worker", [], ["worker"]),
    ],
)
def test_a_part_alone_does_its_own_part_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kept: list[Child],
    role: serving.Role | None,
    ran: list[str],
    names: list[str],
) -> None:
    has_run = list[str]()
    monkeypatch.setattr(serving, "run_once", lambda once, _: has_run.append(once.name))
    serving.serve(Settings(home=tmp_path, port=0, **SECRETS), 2, role)
    assert (has_run, [one.name for one in kept]) == (ran, names)


def test_others_of_one_home_have_names_and_facts_of_their_own_and_what_they_answer_from_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path, port=0, share=tmp_path / "share", **SECRETS)
    layout = Layout.make(tmp_path, settings.share, 1, room=0)
    names, urls = list[list[str]](), list[str]()

    class Answering:
        def __init__(self, stages: list[Stage], *, on_start: Callable[[Mapping[str, int]], None], **_: object) -> None:
            names.append([one.name for stage in stages for one in stage.children])
            on_start({})

        def stop(self) -> None: ...

        def run(self) -> None:
            found = read_facts(tmp_path)
            assert found is not None
            urls.append(found.url)
            if len(names) < 4:
                serving.serve(settings, 1, (None, "api", "unlearner", None)[len(names)])
                # The first living one, as before.
                assert read_facts(tmp_path) == found
                assert layout.path.exists(), "another answers from it"

    monkeypatch.setattr(serving, "run_once", lambda *_: None)
    monkeypatch.setattr(serving, "Supervisor", Answering)
    monkeypatch.setattr(serving, "configure_logging", lambda *_, **__: None)
    serving.serve(settings, 2)
    assert names == [
        ["api-0", "api-1", "unlearner"],
        ["api2-0"],
        ["unlearner2"],
        ["api3-0", "unlearner3"],
    ]
    assert len(set(urls)) == 1
    assert facts_paths(tmp_path) == []
    assert not layout.path.exists(), "the last one to end removes it"
    # Names are free again.
    serving.serve(settings, 1, "api")
    assert names[-1] == ["api-0"]


def test_of_several_users_that_stop_at_once_the_last_learns_that_it_is_and_one_that_starts_waits_for_it(
    tmp_path: Path,
) -> None:
    has_started = threading.Event()

    def start() -> None:
        with in_use(tmp_path):
            has_started.set()

    starting = threading.Thread(target=start)
    with in_use(tmp_path) as first:
        with in_use(tmp_path) as second:
            assert (first(), second()) == (False, True)
            starting.start()
            assert not has_started.wait(0.3)
        assert has_started.wait(PATIENCE_S)
    starting.join()
    with in_use(tmp_path) as stopping, in_use(tmp_path):
        assert not stopping(), "another has started meanwhile"


def test_commands_ask_one_that_lives(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for number, pid in ((1, gone.pid), (2, os.getpid())):
        facts = ServerFacts(pid, f"http://127.0.0.1:{number}", "model", datetime.now(UTC), {})
        write_private(facts_path(tmp_path, number), msgspec.json.encode(facts))
    found = read_facts(tmp_path)
    assert found is not None
    assert found.url == "http://127.0.0.1:2"


def test_every_setting_reaches_a_child(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, trusted_proxies="10.0.0.0/8", model=tmp_path / "m", **SECRETS)
    assert Settings(**json.loads(json.dumps(settings_for("prepare", settings)))) == settings


def test_only_who_makes_the_first_key_receives_the_administrators(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, **SECRETS)
    assert settings_for("prepare", settings)["admin_key"] == "of-the-administrator"
    assert settings_for("api", settings)["admin_key"] is None
    assert settings_for("unlearner", settings)["admin_key"] is None


def test_several_workers_are_started_with_the_unlearner_and_divide_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: list[Child]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    serving.serve(Settings(home=tmp_path, port=0, workers=3, **SECRETS), 1)
    assert [one.name for one in kept] == ["api-0", "unlearner", "worker-1", "worker-2"]
    assert [one.environment["OMP_NUM_THREADS"] for one in kept] == ["7", "2", "2", "2"]
    assert [one.environment["LOCAL_RANK"] for one in kept[2:]] == ["1", "2"]


def test_no_setting_is_in_the_environment_or_among_the_arguments_of_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", SECRETS["database_url"])
    monkeypatch.setenv("lethe_admin_key", SECRETS["admin_key"])
    monkeypatch.setenv("LETHE_HOME", str(tmp_path))
    made = child("api", Settings(redis_url=SECRETS["redis_url"]), "api-0")
    assert made.handover["settings"]["database_url"] == SECRETS["database_url"]
    assert not [name for name in made.environment if name.upper() in ("DATABASE_URL", "LETHE_ADMIN_KEY", "LETHE_HOME")]
    assert not [text for text in [*made.command, *made.environment.values(), repr(made)] if "of-the-" in text]


def test_a_child_finds_the_code_that_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.chdir(tmp_path)
    made = child("prepare", Settings())
    where = "import service.cli.child, sys; sys.stdout.write(service.cli.child.__file__)"
    command = [*made.command[: made.command.index("-m")], "-c", where]
    found = subprocess.run(command, env=dict(made.environment), capture_output=True, text=True, check=True)
    assert found.stdout == str(ROOT / "service" / "cli" / "child.py")


def test_what_a_killed_supervisor_has_left_is_ended_and_nothing_else(tmp_path: Path) -> None:
    waiting = [sys.executable, "-c", "import sys; sys.stdout.write('up'); sys.stdout.flush(); sys.stdin.read()"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen([*waiting, "service.cli.child"], **pipes) as orphan,
        subprocess.Popen(waiting, **pipes) as other,
    ):
        for process in (orphan, other):
            assert process.stdout is not None
            assert process.stdout.read(2) == b"up"
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        facts = facts_path(tmp_path, 2)
        facts.parent.mkdir()
        pids = {"api-0": orphan.pid, "unlearner": other.pid, "api-1": gone.pid}
        # As from a supervisor in another container, whose process ids mean nothing here.
        said = ServerFacts(gone.pid, "http://127.0.0.1:1", "model", datetime.now(UTC), pids)
        facts.write_bytes(msgspec.json.encode(said))
        with own_number(tmp_path, "api"), own_number(tmp_path, "api"):
            end_orphans(tmp_path)
        assert (orphan.poll(), other.poll()) == (None, None), "their supervisor runs"
        end_orphans(tmp_path)
        assert not psutil.pid_exists(orphan.pid)
        assert other.poll() is None
        other.kill()


@pytest.mark.parametrize("text", [None, "", "{}", '{"pid": 1}', "[]"])
def test_no_facts_or_damaged_ones_keep_nobody_from_starting(tmp_path: Path, text: str | None) -> None:
    facts = facts_path(tmp_path, 1)
    facts.parent.mkdir()
    if text is not None:
        facts.write_text(text)
    end_orphans(tmp_path)
