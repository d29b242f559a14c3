"""A service under continuous prediction requests: started, made to delete, disturbed, and judged at the end."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

import psutil
import redis

from lethe_client import LetheClient, ProblemError, ServerUnreachable
from lethe_client.results import Deletion
from service.db.clock import boottime
from tests.support.predictions import asker, gated
from tests.support.predictions.asker import Seen
from tests.support.predictions.gated import Gate
from tests.support.predictions.ground import Ground, Servers
from tests.support.predictions.judging import Claim, Verdict, judged
from tests.support.processes.lethe_process import KEY, Ended, LetheProcess, authorization, copied
from tests.support.processes.workers import free_port

#: Longest wait for any condition (seconds): more than the 60 s after which Postgres ends the transaction of a process
#: that was stopped in it.
_PATIENCE_S = 120.0
_LOOK_S = 0.02
#: Number of asking processes, and of the remaining nodes that they ask for.
_ASKERS = 4
_KEPT = 40


class GatedLethe(LetheProcess):
    """A `lethe serve`, or a part of it, that stops at a failure point when its gate is closed."""

    def __init__(self, ground: Ground, home: Path, gate: Gate, path: Path, **settings: Any) -> None:
        settings = {"database_url": ground.servers.database_url, "redis_url": ground.servers.redis_url} | settings
        super().__init__(
            ground.preloaded.python(gated.__file__), home, lease_ttl_s=3, max_wait_ms=5, log_level="warning", **settings
        )
        self.gate = gate
        self.port = int(settings.get("port", 0))
        self._order = {"gate": str(path), "boot": str(ground.boot), "mutant": ground.mutant}

    def launch(self, *command: object) -> IO[str]:
        """Start it, or another command of Lethe's in its home, without waiting."""
        assert self._process is None, "it runs already"
        self._stdout = []
        words = [str(part) for part in command] or self._command
        order = json.dumps(self._order | {"command": words})
        self._process = self._lethe([order], self._environment, self.home.parent, self._log)
        return self._process.stdout

    def run(self, *command: object) -> Ended:
        """Run another command and return how it ended."""
        self.launch(*command)
        return self.ended()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended or was never started."""
        return self._process is None or self._process.poll() is not None

    def children(self) -> list[psutil.Process]:
        """The processes that it has started."""
        return [] if self.has_ended else psutil.Process(self.pid).children()

    def answering(self) -> list[int]:
        """Process ids of the answering processes."""
        with contextlib.suppress(OSError, ValueError):
            pids: dict[str, int] = json.loads((self.home / "run" / "server.json").read_text())["pids"]
            running = {child.pid for child in self.children()}
            return [pid for name, pid in pids.items() if name.startswith("api-") and pid in running]
        return []


class Askers:
    """Four processes that send requests."""

    def __init__(self, ports: Sequence[int], kept: Sequence[str], doomed: Sequence[str]) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-P", asker.__file__],
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(_ASKERS)
        ]
        for number, process in enumerate(self._processes):
            plan = {"ports": ports, "key": KEY, "kept": kept, "doomed": doomed, "seed": number}
            self._write(process, json.dumps(plan))

    def look(self) -> list[Seen]:
        """Return their records so far."""
        for process in self._processes:
            self._write(process, "")
        found = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "a process that asks has ended"
            found.append(Seen(**json.loads(line)))
        return found

    def end(self) -> None:
        """End all of them."""
        for process in self._processes:
            process.kill()
            process.communicate()

    def _write(self, process: "subprocess.Popen[str]", line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()


class Site:
    """One model, the Lethes that serve it, and the askers."""

    def __init__(self, ground: Ground, name: str, *, doomed: int, api_workers: int = 2) -> None:
        """Prepare a service in a new home without starting it; at most `doomed` nodes may be deleted."""
        assert doomed + _KEPT <= len(ground.nodes)
        self.ground = ground
        self.home = ground.folder / name
        self.home.mkdir(mode=0o700)
        copied(ground.model, self.home / "model")
        self.port = free_port()
        self._gate_path = ground.folder / f"{name}.gate"
        self.gate = Gate(self._gate_path)
        self._api_workers = api_workers
        self.lethe = self.serving(self.home, self.port)
        self.standby: GatedLethe | None = None
        self.claims: list[Claim] = []
        self.faults = 0
        self.kept, self.doomed = list(ground.nodes[:_KEPT]), list(ground.nodes[_KEPT : _KEPT + doomed])
        self._next = iter(self.doomed)
        self._others: list[GatedLethe] = []
        self.askers: Askers | None = None
        # A short timeout: an answering process may be stopped, and then another one answers.
        self._client = LetheClient(f"http://127.0.0.1:{self.port}", KEY, timeout_s=2.0, retries=0)

    def serving(self, home: Path, port: int, **settings: Any) -> GatedLethe:
        """Return a Lethe in a given home, on this site's servers; its processes end with the site."""
        return GatedLethe(
            self.ground, home, self.gate, self._gate_path, port=port, api_workers=self._api_workers, **settings
        )

    def start(self, *, standby: bool = False, ports: Sequence[int] = ()) -> Self:
        """Start the service and the askers, which also use other `ports`; `standby` adds a second unlearner."""
        self.lethe.start()
        if standby:
            self.standby = GatedLethe(
                self.ground, self.home, self.gate, self._gate_path, role="unlearner", part="-standby"
            )
            self.standby.launch()
        self.askers = Askers([self.port, *ports], self.kept, self.doomed)
        self.until_all_answer()
        return self

    def beside(self, lethe: GatedLethe) -> GatedLethe:
        """Register another Lethe, which ends with the site."""
        self._others.append(lethe)
        return lethe

    def close(self) -> None:
        """End everything."""
        if self.askers is not None:
            self.askers.end()
        self._client.close()
        self.gate.open()
        for lethe in (self.lethe, self.standby, *self._others):
            if lethe is not None and not lethe.has_ended:
                lethe.kill()

    # Requests.

    def request(self) -> tuple[str, str]:
        """Request the deletion of the next node, across outages. Returns the node and the request."""
        node = next(self._next)
        accepted = self.persist(
            lambda client: client.request_deletion([node], idempotency_key=f"of-{node}"), what=f"the deletion of {node}"
        )
        return node, accepted.id

    def complete(self, node: str, request: str) -> Deletion:
        """Wait until a deletion is completed, across outages, and claim its consequences."""
        claimed = False
        while True:
            found = self.persist(lambda client: client.deletion(request), what=f"request {request}")
            assert found.status in ("queued", "applied", "completed"), found
            if found.applied_at is not None and not claimed:
                assert found.audit is not None
                self.claims.append(
                    Claim(
                        found.audit.model_version_after,
                        found.applied_at.timestamp(),
                        boottime(),
                        f"node {node} was applied in version {found.audit.model_version_after}",
                        node,
                    )
                )
                claimed = True
            if found.status == "completed":
                return found
            time.sleep(_LOOK_S)

    def is_applied(self, request: str) -> bool:
        """Whether a request is known to be applied; False without an answer."""
        with contextlib.suppress(ServerUnreachable, ProblemError):
            return self._client.deletion(request).applied_at is not None
        return False

    def delete(self, count: int = 1) -> None:
        """Delete some nodes, one by one."""
        for _ in range(count):
            self.complete(*self.request())

    def claim(self, version: int, what: str) -> None:
        """Claim that nothing before `version` may answer from now on."""
        self.claims.append(Claim(version, time.time(), boottime(), what))

    @property
    def newest(self) -> int:
        """The newest version known to be applied."""
        return max((claim.version for claim in self.claims), default=0)

    def version(self) -> int:
        """Return the served version."""
        version: int = self.persist(lambda client: client.model().version, what="the model")
        return version

    def persist(self, call: Callable[[LetheClient], Any], *, what: str) -> Any:
        """Return the answer to a call, retried across outages."""
        answer: list[Any] = []

        def is_answered() -> bool:
            try:
                answer.append(call(self._client))
            except ServerUnreachable:
                return False
            except ProblemError as error:
                if error.status != 503:
                    raise
                return False
            return True

        self.until(is_answered, f"an answer about {what}")
        return answer[0]

    def until_all_answer(self, lethe: GatedLethe | None = None) -> None:
        """Wait until every answering process predicts by the newest known version, each on a connection of its own.

        Nothing else helps them: readers recover by themselves.
        """
        serving, wanted = lethe or self.lethe, self.newest
        while True:
            answered: dict[int, int] = {}

            def look(answered: dict[int, int] = answered) -> bool:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    pid, version = self._ask_one(serving.port, serving.answering())
                    answered[pid] = max(version, answered.get(pid, -1))
                pids = serving.answering()
                return bool(pids) and all(answered.get(pid, -1) >= wanted for pid in pids)

            self.until(look, f"every process to answer by version {wanted}", serving, answered)
            if len(serving.answering()) == self._api_workers:
                return

    def _ask_one(self, port: int, pids: Sequence[int]) -> tuple[int, int]:
        """Ask on a new connection. Returns the answering process and its version, -1 for none."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
        try:
            connection.request("GET", f"/predict/{self.kept[0]}", headers=authorization())
            own = connection.sock.getsockname()[1]
            response = connection.getresponse()
            body = response.read()
            version = json.loads(body)["model_version"] if response.status == 200 else -1
            for pid in pids:
                with contextlib.suppress(psutil.Error):
                    if any(one.raddr and one.raddr.port == own for one in psutil.Process(pid).net_connections("tcp")):
                        return pid, version
        finally:
            connection.close()
        return 0, version

    def until(self, condition: Callable[[], bool], what: str, lethe: GatedLethe | None = None, seen: Any = "") -> None:
        """Wait for a condition. Raises AssertionError with the logs after `_PATIENCE_S`."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                logs = "".join(one.log() for one in (lethe or self.lethe, self.standby) if one is not None)
                raise AssertionError(f"waited for {what} in vain: {seen}\n{logs[-20_000:]}")
            time.sleep(_LOOK_S)

    def held(self) -> int:
        """Wait until a process has stopped at the gate, and return its id."""
        self.until(lambda: self.gate.held() is not None, "a process to come to its gate")
        pid = self.gate.held()
        assert pid is not None
        return pid

    @property
    def verdict(self) -> Verdict:
        """The verdict on all records so far."""
        assert self.askers is not None
        return judged(self.askers.look(), self.claims)


@contextmanager
def paused(*pids: int) -> Iterator[None]:
    """Stop the existing processes until the end of the block."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        go_on(*pids)


def go_on(*pids: int) -> None:
    """Continue them."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def kill(*pids: int) -> None:
    """Send SIGKILL."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def postgres(servers: Servers) -> list[int]:
    """Return the process ids of Postgres, the server's first; empty during its restart."""
    with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
        server = psutil.Process(int((servers.folder / "postgres" / "postmaster.pid").read_text().split("\n")[0]))
        return [server.pid, *(child.pid for child in server.children(recursive=True))]
    return []


def valkey(servers: Servers) -> list[int]:
    """Return the process id of Valkey; empty during its restart."""
    with contextlib.suppress(redis.ConnectionError), redis.Redis.from_url(servers.redis_url) as client:
        return [int(client.info("server")["process_id"])]
    return []


def replaced(folder: Path, by: Path) -> None:
    """Replace a folder with a copy."""
    shutil.rmtree(folder)
    kept(by, folder)


def kept(folder: Path, copy: Path) -> Path:
    """Copy a folder with all its times and owners."""
    subprocess.run(["cp", "-a", folder, copy], check=True)
    return copy
