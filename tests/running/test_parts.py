"""Parts that run alone and share private servers: the end and return of one does not disconnect the other."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from lethe_client.errors import ProblemError
from service.processes.private_servers import guardian, running_servers
from tests.support.clients.command_line import CommandLine
from tests.support.preloaded import Start
from tests.support.processes.lethe_process import LetheProcess, version_of

T = TypeVar("T")


def once_answered(ask: Callable[[], T], lethe: LetheProcess) -> T:
    """Return the answer of `ask` once the service can give one."""
    while True:
        try:
            return ask()
        except ProblemError as problem:
            if problem.status != 503:
                raise
            lethe.assert_runs()
        time.sleep(0.02)


def guardian_of(home: Path) -> psutil.Process:
    own = [guardian.__file__, str(home)]
    [found] = [one for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[-2:] == own]
    return found


@pytest.mark.slow
def test_parts_that_end_and_come_back_find_their_servers_where_they_were(home: Path, lethe_start: Start) -> None:
    def part(role: str) -> LetheProcess:
        return LetheProcess(lethe_start, home, role=role, part=role, lease_ttl_s=1, api_workers=1)

    prepare, unlearner, api = part("prepare"), part("unlearner"), part("api")
    prepare.launch()
    assert prepare.ended().status == 0
    assert running_servers(home) is None
    with unlearner.start(), api.start():
        servers = running_servers(home)
        assert version_of(api.delete(["0"])) == 1

        # The unlearner, which has started the servers, is stopped, and returns.
        assert unlearner.stop().status == 0
        with api.client() as client:
            assert api.predict(["40"]).model_version == 1
            accepted = client.request_deletion(["1"])
            unlearner.start()
            assert version_of(client.wait(accepted.id, timeout_s=60.0)) == 2

        # It is killed together with the servers, as by a service manager that ends everything a part has started.
        guardian_of(home).terminate()
        unlearner.kill()
        with api.client() as client:
            accepted = once_answered(lambda: client.request_deletion(["2"], idempotency_key="a"), api)
            assert once_answered(lambda: api.predict(["40"]), api).model_version == 2
            unlearner.start()
            assert version_of(client.wait(accepted.id, timeout_s=60.0)) == 3

        # The answering processes, which now own the servers, are killed, and return.
        api.kill()
        unlearner.assert_runs()
        api.start()
        assert version_of(api.delete(["3"])) == 4
        assert running_servers(home) == servers

        assert api.stop().status == 0
        assert unlearner.stop().status == 0
    assert running_servers(home) is None


@pytest.mark.slow
def test_a_lethe_whose_private_servers_end_with_their_guardian_starts_them_again(
    home: Path,
    lethe_start: Start,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("DATABASE_URL", "REDIS_URL"):
        monkeypatch.delenv(variable, raising=False)
    with LetheProcess(lethe_start, home, api_workers=1) as lethe:
        lethe.start()
        servers, before = running_servers(home), guardian_of(home)
        before.kill()
        psutil.wait_procs([before])
        with lethe.client() as client:
            accepted = once_answered(lambda: client.request_deletion(["1"], idempotency_key="a"), lethe)
            completed = once_answered(lambda: client.wait(accepted.id, timeout_s=60.0), lethe)
        assert version_of(completed) == 1
        assert once_answered(lambda: lethe.predict(["40"]), lethe).model_version == 1
        assert running_servers(home) == servers
        assert "the private servers had ended with their guardian; they run again" in lethe.log()
        refused = CommandLine(capsys)("recover", "--home", home)
        assert (refused.status, f"Lethe already runs in {home}" in refused.stderr) == (4, True)
        assert lethe.stop().status == 0
    assert running_servers(home) is None
