"""Where processes that are to compute together find one another, once for each group of them.

The first of them opens the meeting at an address of its own and says what is to be made ready. Whoever comes makes it
ready and says so, with a digest of it; the first then settles who takes part: those that are ready by then, with the
digest that it has itself. Who comes later waits for the next meeting. One that dies between being ready and taking part
is missed within the time given, as `WorkersLost`. The group's own connections, on ports that are free, are made where
gloo is told to: on the network interface that the environment's GLOO_SOCKET_IFNAME names.

Nothing that passes is encrypted or authenticated: this belongs on a private network.
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

#: Seconds between two looks at what the other side says.
_LOOK_S = 0.05
#: Longest wait for the first worker to accept a connection (seconds).
_CONNECT_S = 2.0
_CAME, _TASK, _READY, _SETTLED = "came", "task", "ready", "settled"


class Meeting:
    """Of the first worker, from before it makes ready itself until the group is not needed any more."""

    def __init__(self, address: str, port: int, timeout_s: float) -> None:
        """Listens at `address`, on a port that is free where `port` is 0.

        OSError when that is not possible, or when `address` means all of this host's, as `0` does.
        """
        family, *_, (host, *_) = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        if ip_address(str(host).partition("%")[0]).is_unspecified:
            raise OSError(errno.EADDRNOTAVAIL, "it means every address of this host", address)
        bound = socket.create_server((host, port), family=family)
        self._timeout_s = timeout_s
        #: Where it listens.
        self.address, self.port = str(host), int(bound.getsockname()[1])
        # Of a bound socket, since by itself it would listen at every address.
        self._store = _store(self.address, self.port, timeout_s, listening=bound.detach())

    def begin(self, task: str) -> None:
        """Says what is to be made ready."""
        self._store.set(_TASK, task)

    @property
    def came(self) -> int:
        """How many have come, whatever became of them."""
        return int(self._store.add(_CAME, 0))

    def ready(self) -> dict[int, str]:
        """The digests of those that are ready, by their numbers."""
        numbers = range(1, self.came + 1)
        return {
            number: self._store.get(f"{_READY}/{number}").decode()
            for number in numbers
            if self._store.check([f"{_READY}/{number}"])
        }

    def settle(self, digest: str, most: int) -> list[int]:
        """Settles who takes part, besides the first: at most so many, by their numbers."""
        members = [number for number, theirs in self.ready().items() if theirs == digest][:most]
        self._store.set(_SETTLED, json.dumps({"digest": digest, "members": members}))
        return members

    @contextmanager
    def group(self, members: list[int], device: torch.device | str) -> Iterator[Distributed]:
        """The first of the group of those settled on, for the time of the block; raises WorkersLost without them."""
        with _group(self._store, 0, 1 + len(members), self._timeout_s, device) as workers:
            yield workers


class Visit:
    """Of any other worker, at one meeting."""

    def __init__(self, address: str, port: int, timeout_s: float) -> None:
        """Comes to the meeting at `address`; OSError while there is none, WorkersLost when it ends at once."""
        with closing(socket.create_connection((address, port), _CONNECT_S)) as found:
            #: The address at which the first can reach this process.
            self.address = str(found.getsockname()[0])
            host = str(found.getpeername()[0])
        self._timeout_s = timeout_s
        with _while_it_lasts():
            self._store = _store(host, port, timeout_s)
            self._number = int(self._store.add(_CAME, 1))

    def task(self) -> str:
        """What is to be made ready, once that is said; raises WorkersLost when the meeting ends before."""
        with _while_it_lasts():
            while self.settled or not self._store.check([_TASK]):
                time.sleep(_LOOK_S)
            return str(self._store.get(_TASK).decode())

    @property
    def settled(self) -> bool:
        """Whether it is settled who takes part; raises WorkersLost when the meeting is over."""
        with _while_it_lasts():
            return bool(self._store.check([_SETTLED]))

    def take_part(self, digest: str) -> int | None:
        """Says that it is ready; its place among those that take part, None when it has come too late for that.

        Raises WorkersDiffer when what it has made ready is not what the first has, WorkersLost as `task` does.
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
        """This worker's part in the group, for the time of the block; raises WorkersLost as `Meeting.group` does."""
        with _group(self._store, rank, self._count, self._timeout_s, device) as workers:
            yield workers

    def stay(self) -> None:
        """Waits until the meeting is over."""
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
    """WorkersLost for what the store says when the process that holds it has gone."""
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
