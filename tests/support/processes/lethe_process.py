"""A real `lethe serve` process, started, called over HTTP, stopped and killed as by an operator."""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import httpx2
import numpy as np
import psutil
from numpy.typing import NDArray
from safetensors.numpy import load_file

from lethe_client import LetheClient
from lethe_client.results import Deletion, Predictions
from tests.support.preloaded import ROOT, Process, Start

KEY = "the-first-key"
#: Longest wait for a request to be completed, even across a restart (seconds).
_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    status: int
    stdout: str
    stderr: str


class LetheProcess:
    """One LETHE_HOME and the process that serves it; `start` may be called again after an end.

    `lethe` starts Lethe's command line. `settings` are those of the service, by field name. Without `database_url` and
    `redis_url`, the process starts its own servers. By default nothing is repaired, since most tests compare with the
    projection.
    """

    def __init__(
        self,
        lethe: Start,
        home: Path,
        *,
        role: str | None = None,
        part: str = "",
        arguments: str = "",
        **settings: Any,
    ) -> None:
        """With a `role`, run that part alone; `part` distinguishes several in one home. `arguments` are of `serve`."""
        self.home = home
        self._is_part = role is not None or bool(part)
        self._command = ["serve", *(() if role is None else ("--role", role)), *arguments.split()]
        self._ready = f"The {role} is ready." if role in ("unlearner", "worker") else "  Docs"
        self._lethe = lethe
        self.model = Path(str(settings.get("model", home / "model")))
        #: The publication lies in the home, so that it is searched and removed with it.
        self.share = home / "share"
        self._log = home.with_name(f"{home.name}{part}.log")
        own = {
            "home": home,
            "port": 0,
            "device": "cpu",
            "admin_key": KEY,
            "repair": "never",
            "share": self.share,
            "readiness_timeout_s": 20.0,
        }
        self._environment = _environment(own | settings)
        self._process: Process | None = None
        self._stdout: list[str] = []
        self.url = ""

    def start(self) -> Self:
        """Return once it reports ready. Raises AssertionError with its output if it ends instead."""
        ended = self.try_to_start()
        if ended is None:
            return self
        raise AssertionError(f"lethe serve ended with status {ended.status} before it was ready:\n{ended.stderr}")

    def try_to_start(self) -> Ended | None:
        """Return None once it reports ready, or how it ended instead."""
        self.launch()
        return self.until_ready()

    def until_ready(self) -> Ended | None:
        """After `launch`: return None once it reports ready, or how it ended instead."""
        assert self._process is not None
        for line in self._process.stdout:
            self._stdout.append(line)
            if line.startswith("  API "):
                self.url = line.split()[-1]
            if line.startswith(self._ready):
                return None
        return self.ended()

    def launch(self) -> IO[str]:
        """Start the process without waiting. Returns its standard output."""
        assert self._process is None, "it runs already"
        self._stdout = []
        self._log.write_text("")
        self._process = self._lethe(self._command, self._environment, self.home.parent, self._log)
        return self._process.stdout

    def ended(self) -> Ended:
        """Wait for the end of the process and of its children, and return how it ended.

        Private servers are included, unless a part alone has ended: others may use the servers that it started.
        """
        assert self._process is not None
        children = self._children()
        self._stdout += self._process.stdout.readlines()
        status = self._process.wait()
        self._process.stdout.close()
        self._process = None
        _wait_for(children)
        return Ended(status, "".join(self._stdout), self._log.read_text())

    def stop(self) -> Ended:
        """Send SIGTERM and wait for the end."""
        self._signal(signal.SIGTERM)
        return self.ended()

    def kill(self, *, with_servers: bool = False) -> None:
        """Send SIGKILL, also to the private servers and their guardian if asked. Returns when all have ended."""
        children = self._children()
        self._signal(signal.SIGKILL)
        for child in children if with_servers else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self.ended()
        _wait_for(children)

    def close(self) -> None:
        """End the process if it runs. Raises AssertionError with its log if it ended by itself."""
        if self._process is not None:
            try:
                self.assert_runs()
            finally:
                self.kill()

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        assert self._process is not None
        return self._process.pid

    def pid_of(self, name: str) -> int:
        """Return the process id of one of its children: `unlearner`, `api-0`."""
        pids: dict[str, int] = json.loads((self.home / "run" / "server.json").read_text())["pids"]
        return pids[name]

    @property
    def printed(self) -> str:
        """Its output up to being ready."""
        return "".join(self._stdout)

    def log(self) -> str:
        """Return its standard error."""
        return self._log.read_text()

    def http(self) -> httpx2.Client:
        """Return a plain client with all scopes."""
        return httpx2.Client(base_url=self.url, headers=authorization(), timeout=120.0)

    def client(self, key: str = KEY) -> LetheClient:
        """Return the typed client, with all scopes; it stops waiting when the process has ended."""
        return LetheClient(self.url, key, timeout_s=30.0, sleep=self._sleep)

    def delete(self, nodes: Iterable[str], reference: str | None = None) -> Deletion:
        """Delete `nodes` in one request, and wait until it is completed."""
        with self.client() as client:
            accepted = client.request_deletion(list(nodes), reference=reference)
            return client.wait(accepted.id, timeout_s=_PATIENCE_S)

    def predict(self, nodes: Iterable[str]) -> Predictions:
        """Return one answer for all `nodes`."""
        with self.client() as client:
            return client.predict_many(list(nodes))

    def weights(self) -> NDArray[np.float64]:
        """Return W (blocks, d, C) of the committed version, from its file."""
        return weights_on_disk(self.model)

    def _sleep(self, seconds: float) -> None:
        """Called by the client between two looks."""
        self.assert_runs()
        time.sleep(min(seconds, 0.05))

    def runs(self) -> bool:
        """Return whether the process has not ended."""
        return self._process is not None and self._process.poll() is None

    def assert_runs(self) -> None:
        """Raise AssertionError with the log if the process has ended."""
        assert self._process is not None, "it was not started"
        status = self._process.poll()
        assert status is None, f"lethe serve ended by itself with status {status}:\n{self.log()}"

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _children(self) -> list[psutil.Process]:
        assert self._process is not None
        children: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._process.pid).children(recursive=True)
            if self._is_part:
                session = os.getsid(self._process.pid)
                children = [child for child in children if _session_of(child) == session]
        return children

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _session_of(process: psutil.Process) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(process.pid)
    return None


def _wait_for(processes: Iterable[psutil.Process]) -> None:
    """Return when all have ended; zombies count as ended."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.005)


def authorization() -> dict[str, str]:
    """Return the header with the first key."""
    return {"Authorization": f"Bearer {KEY}"}


def version_of(deletion: Deletion) -> int:
    """Return the model version that applied a request."""
    assert deletion.audit is not None
    return deletion.audit.model_version_after


def weights_on_disk(model: Path) -> NDArray[np.float64]:
    """Return W (blocks, d, C) of the version in CURRENT, read without Lethe's own code."""
    folder = (model / "CURRENT").read_text().split()[0]
    weights: NDArray[np.float64] = load_file(model / "versions" / folder / "state.safetensors")["features.weights"]
    return weights


def figures_of(model: Path) -> dict[str, Any]:
    """Return the manifest of a model folder, unparsed by Lethe."""
    figures: dict[str, Any] = json.loads((model / "manifest.json").read_text())
    return figures


def copied(model: Path, folder: Path) -> Path:
    """Copy a trained model to `folder`."""
    shutil.copytree(model, folder)
    return folder


def _environment(settings: Mapping[str, object]) -> dict[str, str]:
    """Return this process' environment with exactly these settings of Lethe."""
    own = ("LETHE_", "DATABASE_URL", "REDIS_URL")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    environment["PYTHONPATH"] = str(ROOT)
    names = {"database_url": "DATABASE_URL", "redis_url": "REDIS_URL"}
    return environment | {names.get(field, f"LETHE_{field.upper()}"): str(value) for field, value in settings.items()}
