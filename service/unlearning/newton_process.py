"""Newton's method in a process of its own, for repairs whose products take less time than the interpreter's lock.

A product with the Hessian is some thirty calls to torch. Each gives up the interpreter, and beside an event loop that
is never idle it waits to get it back about as long as a whole product on Cora takes. Large products leave the
interpreter to others anyway; they stay here.

The process holds one problem at a time, and overwrites it at its end, when it is given another, and when it is told to
forget it. It ends when its connection does, so also when this process is killed. Nothing depends on it: if it is gone,
stopped or cannot be started, repairs go on without.
"""

import contextlib
import itertools
import logging
import os
import pickle
import socket
import struct
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from torch import Tensor

from projector.forgetting.repair import newton
from projector.network.representation import DenseRepresentation, Representation
from projector.solvers.newton import Newton
from projector.solvers.objective import Objective, Point

#: Where the process pays: up to so many bytes that a product reads, and from so many weights on, since conjugate
#: gradients need few products for few of them.
_LARGEST_PRODUCT = 16 << 20
_FEWEST_WEIGHTS = 2_000
#: Bytes of a value of a sparse matrix with its column.
_ENTRY = 12
#: Longest work for one answer, and longest wait for the process to take in a problem or to give an answer (seconds).
_SLICE_S = 1.0
_PATIENCE_S = 10.0
#: Settings of the service that are none of its business; among them are passwords.
_PRIVATE = ("LETHE_", "DATABASE_URL", "REDIS_URL")
#: What is raised when the process is gone.
_GONE = (EOFError, OSError)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Problem:
    """Minimise `objective` from `start` (p, C)."""

    objective: Objective
    start: Tensor
    tolerance: float


@dataclass(frozen=True, eq=False)
class _Request:
    """Work on a problem until `time.monotonic()`, one clock for all processes, reaches `until`."""

    number: int
    until: float
    #: Given with the first request alone.
    problem: _Problem | None = None


@dataclass(frozen=True, eq=False)
class _Reached:
    """How far a minimisation has come."""

    best: Tensor
    iterations: int
    products: int
    finished: bool


@dataclass(frozen=True)
class _Failed:
    """The answer of a process that ends because it could not go on."""

    error: str


class NewtonProcess:
    """The process, started when it is first asked for. Used from one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._ready = False
        #: Whether it holds a problem.
        self._holding = False
        self._numbers = itertools.count()

    def __enter__(self) -> "NewtonProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Its process id; None while there is no process."""
        return None if self._process is None else self._process.pid

    def start(self) -> bool:
        """Starts the process if there is none, without waiting for it. Returns whether it is ready."""
        try:
            if self._connection is None:
                self._launch()
            elif not self._ready and self._connection.poll():
                self._connection.recv_bytes()
                self._ready = True
        except _GONE as error:
            self._lost(error)
        return self._ready

    def minimisation(self, objective: Objective, start: Point, tolerance: float) -> "Newton | RemoteNewton":
        """`Newton` from `start`: in the process where that pays, once it is ready."""
        dense = isinstance(objective.representation, DenseRepresentation)
        if not dense and pays(objective.representation, start.W.shape[1]) and self.start():
            return RemoteNewton(self, next(self._numbers), objective, start, tolerance)
        return newton(objective, start, tolerance)

    def close(self) -> None:
        """Ends the process; the next `start` starts another."""
        process, connection = self._process, self._connection
        self._process, self._connection, self._ready, self._holding = None, None, False, False
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.wait()

    def ask(self, request: _Request) -> _Reached | None:
        """How far the process has come; None when it does not know the problem (any more), or is gone."""
        if self._connection is None:
            return None
        try:
            self._send(request)
            self._holding = True
            answer = pickle.loads(self._connection.recv_bytes())
        except _GONE as error:
            self._lost(error)
            return None
        if isinstance(answer, _Failed):
            self._lost(answer)
            return None
        if not isinstance(answer, _Reached | None):
            raise TypeError(f"the process for repairs answered with {type(answer).__name__}")
        # One that does not know this problem may hold another.
        self._holding = answer is None or not answer.finished
        return answer

    def forget(self) -> None:
        """The process overwrites the problem it holds, if it holds one."""
        if not self._holding:
            return
        self._holding = False
        try:
            self._send(None)
        except _GONE as error:
            self._lost(error)

    def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(_PATIENCE_S), 0))
            environment = {name: value for name, value in os.environ.items() if not name.startswith(_PRIVATE)}
            # A checkout, or where the wheel was installed; last, and without the current folder (-P), since what else
            # lies there must not stand in for the standard library's.
            code = (
                f"import sys; sys.path.append({str(Path(__file__).parents[2])!r}); "
                f"from {__name__} import serve; serve({theirs.fileno()})"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment | {"OMP_NUM_THREADS": "1"},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for the service, which may have a batch to finish
            )
            self._connection = Connection(ours.detach())

    def _send(self, request: _Request | None) -> None:
        if self._connection is not None:
            # Not by `Connection.send`, which would share the memory of tensors instead of copying them.
            self._connection.send_bytes(pickle.dumps(request, pickle.HIGHEST_PROTOCOL))

    def _lost(self, reason: object) -> None:
        status = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(1.0)
        self.close()
        ended = "does not answer or was not started" if status is None else f"ended with status {status}"
        _log.warning("The process for repairs %s (%r); they go on without it.", ended, reason)


class RemoteNewton:
    """A minimisation of F by `Newton` in the process."""

    def __init__(
        self, process: NewtonProcess, number: int, objective: Objective, start: Point, tolerance: float
    ) -> None:
        self._process = process
        self._number = number
        self._problem = _Problem(objective, start.W, tolerance)
        self._begun = False
        #: Whether the process cannot go on with it; another minimisation can, from `best`.
        self.interrupted = False
        #: The point of smallest relative gradient.
        self.best = start
        self.iterations = 0
        #: Products with the Hessian.
        self.products = 0
        self.finished = self.converged

    @property
    def converged(self) -> bool:
        """Whether the best relative gradient is within the tolerance."""
        return self.best.relative_gradient <= self._problem.tolerance

    def step(self, until: float) -> None:
        """As much as fits before `time.monotonic()` reaches `until`, and at most for a second; at least one product."""
        problem = None if self._begun else self._problem
        until = min(until, time.monotonic() + _SLICE_S)
        reached = self._process.ask(_Request(self._number, until, problem))
        if reached is None:
            self.interrupted = True
            return
        self._begun = True
        self.best = self._problem.objective.at(reached.best)
        self.iterations, self.products, self.finished = reached.iterations, reached.products, reached.finished


def pays(representation: Representation, classes: int) -> bool:
    """Whether products with `representation` are quick enough, and many enough, for a process of their own."""
    inputs = list(representation.inputs)
    if any(each.rows.device.type != "cpu" for each in inputs):
        return False
    features = sum(each.rows.stored_bytes for each in inputs)
    propagation = sum(_ENTRY * each.operators.entries for each in inputs)
    read = 2 * (features + propagation + 8 * representation.nodes * classes)
    return read <= _LARGEST_PRODUCT and representation.columns * classes >= _FEWEST_WEIGHTS


def serve(descriptor: int) -> None:
    """What the process does, on its end of the connection, until the other end is closed."""
    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
    connection = Connection(descriptor)
    desk = _Desk()
    with contextlib.suppress(*_GONE):
        connection.send_bytes(b"ready")
        while True:
            received = connection.recv_bytes()
            answer: _Reached | _Failed | None
            try:
                request: _Request | None = pickle.loads(received)
                if request is None:
                    desk.clear()
                    continue
                answer = desk.work(request)
            except Exception as error:  # noqa: BLE001 - told to whoever asked, who computes it again
                answer = _Failed(type(error).__name__)
            connection.send_bytes(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
            if isinstance(answer, _Failed):
                os._exit(1)  # without taking apart what was imported, which takes longer than anybody waits


class _Desk:
    """The problem that the process works on."""

    def __init__(self) -> None:
        self._number = -1
        self._problem: _Problem | None = None
        self._newton: Newton | None = None

    def work(self, request: _Request) -> _Reached | None:
        if request.problem is not None:
            self.clear()
            problem = request.problem
            self._number, self._problem = request.number, problem
            self._newton = Newton(problem.objective, problem.objective.at(problem.start), problem.tolerance)
        newton = self._newton
        if newton is None or self._number != request.number:
            return None
        newton.step(request.until)
        while not newton.finished and time.monotonic() < request.until:
            newton.step(request.until)
        if newton.finished:
            self.clear()
        return _Reached(newton.best.W, newton.iterations, newton.products, newton.finished)

    def clear(self) -> None:
        """Overwrites what the problem holds of single nodes."""
        if self._problem is not None:
            for each in self._problem.objective.representation.inputs:
                each.rows.overwrite()
        self._problem = self._newton = None
