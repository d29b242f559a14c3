"""Assemble `lethe serve`: private servers, one unlearner, and processes that answer requests on one socket.

With several workers, it also includes the processes that compute with the unlearner.
"""

import contextlib
import os
import signal
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil

from service.domain.addresses import url_of
from service.errors import ConfigurationError, Unavailable
from service.home_id import require_local_disks
from service.observability.logging import configure_logging
from service.predictions.heads import Heads
from service.predictions.layout import Layout, in_use
from service.processes import takeover
from service.processes.child_process import Child
from service.processes.listening import (
    ServerFacts,
    facts_file,
    facts_path,
    facts_paths,
    listen,
    notify_service_manager,
    numbered,
    own_number,
    stopped_by_signals,
    taken_if_free,
    was_there,
)
from service.processes.private_servers import open_servers, private_servers
from service.processes.supervisor import Stage, Supervisor, run_once
from service.processes.takeover import Predecessor
from service.settings import Settings, environment_without_settings
from service.web.connections import REQUESTS_GRACE_S

#: Parts that can run alone: the preparation, which ends; the answering processes; the unlearner; one worker that
#: computes with it.
Role = Literal["prepare", "api", "unlearner", "worker"]
#: Work of one process.
Work = Literal["train", "prepare", "unlearner", "worker", "api"]

_PROGRAM = "service.cli.child"
#: The settings of a worker that follows the unlearner, in addition to the model's folder.
_OF_WORKERS = ("device", "workers_address", "workers_port", "lease_ttl_s", "log_format", "log_level")
#: Seconds that a process gets to end, beyond the time for its current work.
_ENDING_S = 5.0
#: Maximum wait for just killed processes of an earlier start (seconds).
_ORPHANS_S = 5.0
#: Time for a successor to become ready (seconds). After that it ends, and the running Lethe continues.
_TAKEOVER_S = 600.0
#: Maximum time for connections to end by themselves after a successor has taken over (seconds).
_DRAIN_S = 60.0


def serve(settings: Settings, api_workers: int, role: Role | None = None, *, replace: bool = False) -> None:
    """Serve until SIGTERM or SIGINT, with `api_workers` answering processes; with a `role`, run that part alone.

    Within `shutdown_grace_s`, requests in progress are answered, and the current batch is finished or given up. The
    model must exist. For the roles `api` and `unlearner`, this version's tables and keys must exist too. Others may
    serve the same LETHE_HOME, each on its own port. With `replace` this one takes over the socket of the one at its
    address, which ends once this one is ready.

    Raises:
        ConfigurationError: the port is in use, or a setting cannot work.
        AlreadyRunning: another process trains the first model of this LETHE_HOME, recovers it, or replaces its Lethe.
        OtherPublicationFormat: the Lethe to replace publishes what this version cannot read.
        Unavailable: this one was not ready to replace it in time.
        LetheError: another error prevented the start.
        EmbeddedServerError: the private servers ended with their guardian and cannot be restarted.
        SystemExit: a child could not start and has reported why; with its status.
    """
    configure_logging(settings.log_format, settings.log_level, process="supervisor")
    require_local_disks(settings.home, settings.share)
    if replace:
        _require_replaceable(settings, role)
    with stopped_by_signals() as hand_over, ExitStack() as stack:
        if role == "worker":
            alone = Stage([child("worker", settings)], _ENDING_S)
            supervisor = Supervisor([alone], on_ready=lambda: _print("The worker is ready."), on_start=_ignore)
            hand_over(supervisor.stop)
            supervisor.run()
            return
        bound: socket.socket | None = None
        old: Predecessor | None = None
        if role in (None, "api"):
            end_orphans(settings.home)
            if replace:
                old = stack.enter_context(takeover.predecessor(settings.home, role, settings.host, settings.port))
            bound = old.listener if old else stack.enter_context(listen(settings.host, settings.port))
        embedded = private_servers(settings)
        settings = stack.enter_context(open_servers(settings, embedded))
        if role in (None, "prepare"):
            run_once(child("prepare", settings), _ENDING_S)
        if role == "prepare":
            return
        is_last, stages = stack.enter_context(in_use(settings.home)), list[Stage]()
        on_start: Callable[[Mapping[str, int]], None] = _ignore
        offer: takeover.Offer | None = None
        if bound is not None:
            number = stack.enter_context(own_number(settings.home, "api"))
            stages.append(_answering(settings, number, bound, api_workers, old))
            offer = stack.enter_context(takeover.offered(settings.home, number, bound, role))
            on_start = stack.enter_context(_facts(settings, number, url_of(bound)))
        if role != "api":
            number = stack.enter_context(own_number(settings.home, "unlearner"))
            stages.append(_unlearning(settings, number, {} if role else _threads(settings.workers)))
        if role is None and settings.workers > 1:
            # After the unlearner, which releases the workers.
            stages.append(_following(settings))

        give_up_at, has_given_up = time.monotonic() + _TAKEOVER_S, False

        def look() -> None:
            nonlocal has_given_up
            embedded.keep_running(supervisor.is_stopping)
            if old is not None and supervisor.is_ready(0):
                old.replace()
            elif old is not None and time.monotonic() > give_up_at and old.waits():
                has_given_up = True
                supervisor.retire()
            if offer is not None and offer.is_taken():
                supervisor.retire()

        def ready() -> None:
            notify_service_manager()
            _print("The unlearner is ready." if bound is None else _greeting(url_of(bound)))

        supervisor = Supervisor(stages, on_ready=ready, on_start=on_start, on_look=look)
        hand_over(supervisor.stop)
        supervisor.run()
        if has_given_up:
            raise Unavailable(
                f"This Lethe was not ready within {_TAKEOVER_S:.0f} s. The running one continues.",
                "The log and `./lethe doctor` say what is missing. Correct that, then start it again.",
            )
        if role is None and is_last():
            # After an orderly end no publication stays in memory.
            Heads(settings.home).clear()
            for publication in Layout.all_of(settings.home):
                publication.remove()


def train(settings: Settings) -> None:
    """Train the first model in its own process, to free its memory at the end. Raises the errors of `run_once`."""
    with stopped_by_signals():
        run_once(child("train", settings), _ENDING_S)


def default_workers(cores: int) -> int:
    """Return the default number of answering processes: one core is the unlearner's, at most 4 are theirs."""
    return max(1, min(4, cores - 1))


def child(
    work: Work,
    settings: Settings,
    name: str = "",
    listener: socket.socket | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    beside: int | None = None,
) -> Child:
    """Describe the process that does `work`, with only the secrets it needs; `environment` is added to this one's.

    `beside` is the number of the Lethe that it takes over from.
    """
    return Child(
        name=name or work,
        # -P: a folder named `service` in the user's working folder must not replace ours.
        command=(sys.executable, "-P", "-m", _PROGRAM, name or work),
        environment=_inherited(work) | _where_lethe_is() | _quiet(work) | dict(environment or {}),
        handover={"work": work, "settings": settings_for(work, settings), "beside": beside},
        listener=listener,
    )


def _inherited(work: Work) -> dict[str, str]:
    """Return this process's environment; the credentials of the erasure ledger's bucket are for the unlearner alone."""
    inherited = environment_without_settings()
    return {name: inherited[name] for name in inherited if work == "unlearner" or not name.startswith("AWS_")}


def _where_lethe_is() -> dict[str, str]:
    """Return the variable by which a child finds the code running here, also in a checkout not on the path."""
    root = str(Path(__file__).resolve().parents[2])
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root in named or root == sysconfig.get_path("purelib"):
        return {}
    return {"PYTHONPATH": os.pathsep.join([root, *filter(None, named)])}


def _quiet(work: Work) -> dict[str, str]:
    """Return the variable that stops torch from writing a page about each lost connection; the log has a line."""
    quiet = work in ("unlearner", "worker") and "TORCH_CPP_LOG_LEVEL" not in os.environ
    return {"TORCH_CPP_LOG_LEVEL": "ERROR"} if quiet else {}


def settings_for(work: Work, settings: Settings) -> dict[str, Any]:
    """Return the settings for the process that does `work`; `database_url` has its own login.

    A worker gets the model's folder and the unlearner's address, but no server, key or folder of Lethe's own.
    """
    handover = settings.as_handover()
    if work == "worker":
        return {name: handover[name] for name in _OF_WORKERS} | {"model": str(settings.model_dir)}
    if work in ("api", "unlearner"):
        own = handover.get(f"{work}_database_url")
        handover |= {
            name: None for name in ("api_database_url", "unlearner_database_url", "admin_key") if name in handover
        }
        handover["database_url"] = own or handover["database_url"]
    return handover


def end_orphans(home: Path) -> None:
    """Kill the processes that killed supervisors of this home left behind, and wait for their end.

    The kernel ends them with their supervisor, but slightly later, and until then they hold the port. A
    running supervisor holds the lock of its number, also in another container, where process ids mean other processes.
    """
    for number, facts in facts_paths(home):
        with taken_if_free(home, "api", number) as is_free:
            if is_free:
                _end_children(facts)


def _end_children(facts: Path) -> None:
    """Kill the processes named in a supervisor's facts."""
    try:
        written = facts.stat().st_mtime
        found = msgspec.json.decode(facts.read_bytes(), type=ServerFacts)
        left = [psutil.Process(pid) for pid in found.pids.values() if psutil.pid_exists(pid)]
    except (OSError, ValueError, psutil.NoSuchProcess):
        return
    orphans = []
    for process in left:
        with contextlib.suppress(psutil.Error):
            if was_there(process, written) and _PROGRAM in process.cmdline():
                process.send_signal(signal.SIGKILL)
                orphans.append(process)
    psutil.wait_procs(orphans, timeout=_ORPHANS_S)


def _answering(settings: Settings, number: int, bound: socket.socket, workers: int, old: Predecessor | None) -> Stage:
    name, beside = numbered("api", number), None if old is None else old.number
    children = [child("api", settings, f"{name}-{each}", bound, beside=beside) for each in range(workers)]
    return Stage(children, min(REQUESTS_GRACE_S, settings.shutdown_grace_s) + _ENDING_S, _DRAIN_S)


def _unlearning(settings: Settings, number: int, environment: Mapping[str, str]) -> Stage:
    unlearner = child("unlearner", settings, numbered("unlearner", number), environment=environment)
    return Stage([unlearner], max(0.0, settings.shutdown_grace_s - REQUESTS_GRACE_S) + _ENDING_S)


def _following(settings: Settings) -> Stage:
    threads = _threads(settings.workers)
    children = [
        child("worker", settings, f"worker-{number}", environment={**threads, "LOCAL_RANK": str(number)})
        for number in range(1, settings.workers)
    ]
    return Stage(children, _ENDING_S)


def _threads(workers: int) -> dict[str, str]:
    """Return the environment for `workers` workers on this host, which share the threads that one would have."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return {"OMP_NUM_THREADS": str(max(1, int(threads) // workers))} if threads.isdecimal() and workers > 1 else {}


@contextlib.contextmanager
def _facts(settings: Settings, number: int, url: str) -> Iterator[Callable[[Mapping[str, int]], None]]:
    """Publish this Lethe's address and, by the yielded function, its processes to other commands."""
    started_at = datetime.now(UTC)
    with facts_file(facts_path(settings.home, number)) as write:
        yield lambda pids: write(ServerFacts(os.getpid(), url, str(settings.model_dir), started_at, dict(pids)))


def _ignore(pids: Mapping[str, int]) -> None:
    """Publish nothing for an unlearner that runs alone: an answering Lethe may run in the same home."""


def _require_replaceable(settings: Settings, role: Role | None) -> None:
    """Raise ConfigurationError for parts that are replaced in another way."""
    if role not in (None, "api"):
        raise ConfigurationError(
            f"--replace takes over a listening socket, and the part {role!r} has none.",
            "Start it without --replace: a second unlearner takes over when the first has ended.",
        )
    if role is None and settings.workers > 1:
        raise ConfigurationError(
            "--replace cannot run a second unlearner with workers beside the first: they share one port.",
            "Run the parts alone: replace the answering processes with `--role api --replace`, then restart the "
            "unlearner and its workers.",
        )


def _greeting(url: str) -> str:
    return f"Lethe is ready.\n  Dashboard  {url}/dashboard\n  API        {url}\n  Docs       {url}/docs"


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
