"""The rendezvous of processes that compute together, once for each group.

The first process opens a meeting at its own address and publishes the task to prepare. Visitors prepare it and report
ready with a digest. The first process then settles the members: those ready by then with the same digest as its own.
Later visitors wait for the next meeting. If a member dies between ready and joining, the others time out with
`WorkersLost`. The group's own connections use free ports, on the network interface named by gloo's environment variable
GLOO_SOCKET_IFNAME.

Messages are neither encrypted nor authenticated: use a private network.
"""

import errno
import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from ipaddress import ip_address

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from projector.errors import WorkersDiffer, WorkersLost
from projector.parallel.distributed import Distributed

#: Seconds between two polls of the other side.
_LOOK_S = 0.05
#: Longest wait for the first worker to accept a connection (seconds).
_CONNECT_S = 2.0
_CAME, _TASK, _READY, _SETTLED = "came", "task", "ready", "settled"


class Meeting:
    """The first worker's side, from before its own preparation until the group is finished."""

    def __init__(self, address: str, port: int, timeout_s: float) -> None:
        """Listen at `address`, on a free port if `port` is 0.

        Raises OSError if that fails, or if `address` means all addresses of this host, as `0` does.
        """
        family, *_, (host, *_) = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        if ip_address(str(host).partition("%")[0]).is_unspecified:
            raise OSError(errno.EADDRNOTAVAIL, "it means every address of this host", address)
        bound = socket.create_server((host, port), family=family)
        self._timeout_s = timeout_s
        #: The listening address.
        self.address, self.port = str(host), int(bound.getsockname()[1])
        # Pass a bound socket: the store itself would listen at every address.
        self._store = _store(self.address, self.port, timeout_s, listening=bound.detach())

    def begin(self, task: str) -> None:
        """Publish the task to prepare."""
        self._store.set(_TASK, task)

    @property
    def came(self) -> int:
        """Number of visitors so far, including those that left."""
        return int(self._store.add(_CAME, 0))

    def ready(self) -> dict[int, str]:
        """Return the digests of ready visitors, by their numbers."""
        numbers = range(1, self.came + 1)
        return {
            number: self._store.get(f"{_READY}/{number}").decode()
            for number in numbers
            if self._store.check([f"{_READY}/{number}"])
        }

    def settle(self, digest: str, most: int) -> list[int]:
        """Fix the other members of the group, at most `most`, and return their numbers."""
        members = [number for number, theirs in self.ready().items() if theirs == digest][:most]
        self._store.set(_SETTLED, json.dumps({"digest": digest, "members": members}))
        return members

    @contextmanager
    def group(self, members: list[int], device: torch.device | str) -> Iterator[Distributed]:
        """Join the settled group as its first worker, within the block. Raises WorkersLost if a member is missing."""
        with _group(self._store, 0, 1 + len(members), self._timeout_s, device) as workers:
            yield workers


class Visit:
    """Another worker's side of one meeting."""

    def __init__(self, address: str, port: int, timeout_s: float) -> None:
        """Visit the meeting at `address`. Raises OSError while there is none, WorkersLost if it ends immediately."""
        with closing(socket.create_connection((address, port), _CONNECT_S)) as found:
            #: The address at which the first worker can reach this process.
            self.address = str(found.getsockname()[0])
            host = str(found.getpeername()[0])
        self._timeout_s = timeout_s
        with _while_it_lasts():
            self._store = _store(host, port, timeout_s)
            self._number = int(self._store.add(_CAME, 1))

    def task(self) -> str:
        """Wait for the task to prepare and return it. Raises WorkersLost if the meeting ends before."""
        with _while_it_lasts():
            while self.settled or not self._store.check([_TASK]):
                time.sleep(_LOOK_S)
            return str(self._store.get(_TASK).decode())

    @property
    def settled(self) -> bool:
        """Whether the members are settled. Raises WorkersLost if the meeting is over."""
        with _while_it_lasts():
            return bool(self._store.check([_SETTLED]))

    def take_part(self, digest: str) -> int | None:
        """Report ready and return this worker's rank in the group, or None if it was too late.

        Raises WorkersDiffer if its preparation differs from that of the first worker, WorkersLost as `task` does.
        """
        with _while_it_lasts():
            self._store.set(f"{_READY}/{self._number}", digest)
            while not self.settled:
                time.sleep(_LOOK_S)
            settled = json.loads(self._store.get(_SETTLED))
        if settled["digest"] != digest:
            raise WorkersDiffer(
                f"The worker at {self.address} has loaded another model than the first one.",
                "Give all of them the same folder of the model.",
            )
        members = settled["members"]
        self._count = 1 + len(members)
        return 1 + members.index(self._number) if self._number in members else None

    @contextmanager
    def group(self, rank: int, device: torch.device | str) -> Iterator[Distributed]:
        """Join the group for the duration of the block. Raises WorkersLost as `Meeting.group` does."""
        with _group(self._store, rank, self._count, self._timeout_s, device) as workers:
            yield workers

    def stay(self) -> None:
        """Wait until the meeting is over."""
        with suppress(WorkersLost):
            while self.settled:
                time.sleep(_LOOK_S)


def _store(host: str, port: int, timeout_s: float, listening: int | None = None) -> TCPStore:
    return TCPStore(
        host,
        port,
        is_master=listening is not None,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        master_listen_fd=listening,
    )


@contextmanager
def _while_it_lasts() -> Iterator[None]:
    """Convert the store's errors into WorkersLost once the first worker has gone."""
    try:
        yield
    except (dist.DistError, OSError) as error:
        raise WorkersLost("The first worker has left.", "Wait for its next meeting.") from error


@contextmanager
def _group(store: Store, rank: int, count: int, timeout_s: float, device: torch.device | str) -> Iterator[Distributed]:
    try:
        try:
            timeout = timedelta(seconds=timeout_s)
            dist.init_process_group(
                "gloo", store=PrefixStore("group", store), rank=rank, world_size=count, timeout=timeout
            )
            workers = Distributed(timeout_s, device)
        except (RuntimeError, OSError) as error:
            raise WorkersLost(
                f"The group of {count} workers could not be formed: {str(error).splitlines()[0]}",
                "See that each can reach the others at their addresses, on any port.",
            ) from error
        yield workers
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
