"""Newton's method in a process of its own, for repairs whose products take less time than the interpreter's lock.

A product with the Hessian is some thirty calls to torch. Each gives up the interpreter, and beside an event loop that
is never idle it waits to get it back about as long as a whole product on Cora takes. Large products leave the
interpreter to others anyway; they stay here.

The process forgets a problem at its end. It ends when its connection does, so also when this process is killed. Nothing
depends on it: whatever becomes of it, repairs go on without.
"""

import contextlib
import itertools
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from torch import Tensor

from model_store.newton import Newton
from model_store.objective import Objective, Point
from model_store.representation import Representation

#: Where the process pays: up to so many bytes that a product reads, and from so many weights on, since conjugate
#: gradients need few products for few of them.
_LARGEST_PRODUCT = 16 << 20
_FEWEST_WEIGHTS = 2_000
#: Problems it holds: the repair of the model that is served and that of one being imported.
_MOST_PROBLEMS = 2
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
    """Work on a problem until `time.monotonic()`, one clock for all processes, reaches `until`; None: forget it."""

    number: int
    until: float | None
    #: Given with the first request alone.
    problem: _Problem | None = None


@dataclass(frozen=True, eq=False)
class _Reached:
    """How far a minimisation has come."""

    best: Tensor
    iterations: int
    products: int
    finished: bool


class NewtonProcess:
    """The process, started when it is first asked for. Used from one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._ready = False
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
        if self._connection is None:
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})"],
                    stdin=subprocess.DEVNULL,
                    cwd=Path(__file__).parents[2],
                    env=os.environ | {"OMP_NUM_THREADS": "1"},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # Ctrl-C is for the service, which may have a batch to finish
                )
            self._connection = Connection(ours.detach())
        if not self._ready and self._connection.poll():
            try:
                self._connection.recv_bytes()
            except _GONE as error:
                self._lost(error)
            else:
                self._ready = True
        return self._ready

    def minimisation(self, objective: Objective, start: Point, tolerance: float) -> "Newton | RemoteNewton":
        """`Newton` from `start`: in the process where that pays, once it is ready."""
        if pays(objective.representation, start.W.shape[1]) and self.start():
            return RemoteNewton(self, next(self._numbers), objective, start, tolerance)
        return Newton(objective, start.W, tolerance)

    def close(self) -> None:
        """Ends the process; the next `start` starts another."""
        process, connection = self._process, self._connection
        self._process, self._connection, self._ready = None, None, False
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
            # Not by `Connection.send`, which would share the memory of tensors instead of copying them.
            self._connection.send_bytes(pickle.dumps(request, pickle.HIGHEST_PROTOCOL))
            reached = pickle.loads(self._connection.recv_bytes())
        except _GONE as error:
            self._lost(error)
            return None
        if isinstance(reached, _Reached | None):
            return reached
        raise TypeError(f"the process for repairs answered with {type(reached).__name__}")

    def _lost(self, error: Exception) -> None:
        process = self._process
        self.close()
        status = None if process is None else process.returncode
        _log.warning("The process for repairs ended with status %s (%r); they go on without it.", status, error)


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
        """As much as fits before `time.monotonic()` reaches `until`; at least one product."""
        problem = None if self._begun else self._problem
        reached = self._process.ask(_Request(self._number, until, problem))
        if reached is None:
            self.interrupted = True
            return
        self._begun = True
        self.best = self._problem.objective.at(reached.best)
        self.iterations, self.products, self.finished = reached.iterations, reached.products, reached.finished

    def forget(self) -> None:
        """Lets the process forget the problem."""
        if self._begun and not self.finished:
            self._process.ask(_Request(self._number, None))
        self.interrupted = True


def pays(representation: Representation, classes: int) -> bool:
    """Whether products with `representation` are quick enough, and many enough, for a process of their own."""
    rows = [each.rows for each in representation.inputs]
    if any(each.device.type != "cpu" for each in rows):
        return False
    read = sum(2 * each.stored_bytes for each in rows)
    return read <= _LARGEST_PRODUCT and representation.columns * classes >= _FEWEST_WEIGHTS


def serve(descriptor: int) -> None:
    """What the process does, on its end of the connection, until the other end is closed."""
    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
    connection = Connection(descriptor)
    problems = _Problems()
    with contextlib.suppress(*_GONE):
        connection.send_bytes(b"ready")
        while True:
            reached = problems.answer(pickle.loads(connection.recv_bytes()))
            connection.send_bytes(pickle.dumps(reached, pickle.HIGHEST_PROTOCOL))


class _Problems:
    """The problems that the process holds, the one asked for last at the end."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[_Problem, Newton]] = {}

    def answer(self, request: _Request) -> _Reached | None:
        number, given = request.number, request.problem
        if given is not None:
            self._held[number] = given, Newton(given.objective, given.start, given.tolerance)
        if number not in self._held:
            return None
        self._held[number] = self._held.pop(number)
        newton = self._held[number][1]
        if request.until is not None:
            newton.step(request.until)
            while not newton.finished and time.monotonic() < request.until:
                newton.step(request.until)
        if request.until is None or newton.finished:
            self._forget(number)
        while len(self._held) > _MOST_PROBLEMS:
            self._forget(next(iter(self._held)))
        return _Reached(newton.best.W, newton.iterations, newton.products, newton.finished)

    def _forget(self, number: int) -> None:
        """Overwrites what the problem holds of single nodes."""
        problem, _ = self._held.pop(number)
        for each in problem.objective.representation.inputs:
            each.rows.forget(np.arange(each.rows.nodes))
