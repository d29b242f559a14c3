"""`torchrun` as the starter: the unlearner and another worker, each with its own network address."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.preloaded import Start, fresh
from tests.support.processes.lethe_process import LetheProcess
from tests.support.processes.workers import free_port, until_together

_SPACE = f"lethe-{os.getpid()}"
_OURS, _THEIRS = "10.213.87.1", "10.213.87.2"


@dataclass(frozen=True)
class Network:
    """The locations of two workers."""

    #: Command prefix that runs a command at the second location.
    elsewhere: Sequence[str]
    #: The addresses of the two.
    first: str
    second: str


@pytest.fixture
def network() -> Iterator[Network]:
    """Two network namespaces joined by a cable, or two loopback addresses if this user may not create namespaces."""
    may = not os.geteuid() and shutil.which("ip") is not None
    if not may or subprocess.run(["ip", "netns", "add", _SPACE], check=False).returncode:
        yield Network((), "127.0.0.2", "127.0.0.1")
        return
    inside = ("ip", "netns", "exec", _SPACE)
    ours, theirs = f"l{os.getpid()}a", f"l{os.getpid()}b"
    commands = [
        ("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", _SPACE),
        ("ip", "address", "add", f"{_OURS}/30", "dev", ours),
        ("ip", "link", "set", ours, "up"),
        (*inside, "ip", "address", "add", f"{_THEIRS}/30", "dev", theirs),
        (*inside, "ip", "link", "set", theirs, "up"),
        (*inside, "ip", "link", "set", "lo", "up"),
    ]
    try:
        for command in commands:
            subprocess.run(command, check=True)
        yield Network(inside, _OURS, _THEIRS)
    finally:
        subprocess.run(["ip", "netns", "delete", _SPACE], check=True)


def torchrun(rank: int, network: Network, port: int) -> Start:
    """Start Lethe's command line as one of two that torchrun starts."""
    where = ["--nnodes=2", f"--node-rank={rank}", f"--master-addr={network.first}", f"--master-port={port}"]
    program = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", *where]
    return fresh(*(network.elsewhere if rank else ()), *program, "--no-python", sys.executable, "-m", "service.cli")


def connections(process: psutil.Process) -> set[tuple[str, str]]:
    """Return the address pairs of a process' connections."""
    found = [(one.laddr.ip, one.raddr.ip) for one in process.net_connections("tcp") if one.raddr]
    return {(ours.removeprefix("::ffff:"), theirs.removeprefix("::ffff:")) for ours, theirs in found}


@pytest.mark.slow
def test_torchrun_starts_workers_on_two_hosts(
    network: Network, prepared: Path, servers: dict[str, str], lethe_start: Start
) -> None:
    port = free_port()
    meeting: dict[str, Any] = {"workers_port": free_port(), "lease_ttl_s": 5}

    def started(rank: int, role: str, **settings: Any) -> LetheProcess:
        lethe = LetheProcess(torchrun(rank, network, port), prepared, role=role, part=role, **settings, **meeting)
        # torchrun assigns their roles.
        lethe._command = ["serve"]
        return lethe

    first, second = started(0, "unlearner", **servers), started(1, "worker")
    api = LetheProcess(lethe_start, prepared, role="api", part="api", api_workers=1, **servers)
    first.launch()
    second.launch()
    try:
        assert first.until_ready() is None
        with api.start():
            until_together(api, 2, of=2)
            assert api.delete(["0"]).status == "completed"
            until_together(api, 2, of=2)
            below = psutil.Process(first.pid).children(recursive=True)
            assert not [one for one in below if "worker" in one.cmdline()]
            [unlearner] = [one for one in below if "unlearner" in one.cmdline()]
            assert (network.first, network.second) in connections(unlearner)
    finally:
        second.stop()
        first.stop()
