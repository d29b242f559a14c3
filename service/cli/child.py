"""A process started by the supervisor: `python -P -m service.cli.child NAME DESCRIPTOR`.

The descriptor is that of its channel (`service/processes/child_process.py`). Over the channel it receives its work, its
settings, and the descriptor of the socket that it answers on. It imports only what its work needs.
"""

import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, assert_never

from projector.errors import ExplainedError
from service.cli.console import report_error, reported
from service.errors import DatabaseDamaged, Unavailable
from service.observability.logging import configure_logging
from service.observability.tracing import traced
from service.processes.child_process import READY
from service.processes.listening import stopped_by_signals
from service.processes.serving import Work
from service.processes.supervisor import MAY_PASS
from service.settings import Settings

#: Path errors that persist until somebody corrects them; a full or failing disk is not among them.
_REFUSED_PATH = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EROFS)


def main() -> None:
    """Do the supervisor's work; exit with status 1 without a supervisor."""
    name, descriptor = sys.argv[1], int(sys.argv[2])
    channel = _adopted(descriptor)
    handover = _read(channel)
    settings, work = Settings(**handover["settings"]), handover["work"]
    listener = _adopted(handover["listener"]) if "listener" in handover else None
    configure_logging(settings.log_format, settings.log_level, process=name)
    with reported(), traced(os.environ, name):
        _do(
            work, settings, name, listener, lambda: channel.sendall(READY), handover["restarts"], handover.get("beside")
        )


def _do(
    work: Work,
    settings: Settings,
    name: str,
    listener: socket.socket | None,
    notify_ready: Callable[[], None],
    restarts: int,
    beside: int | None,
) -> None:
    match work:
        case "train":
            from service.cli.serve import train_first_model

            with stopped_by_signals():
                train_first_model(settings)
        case "prepare":
            from service.processes.prepare import deliver, prepare

            with stopped_by_signals():
                key = asyncio.run(prepare(settings))
                if key is not None:
                    deliver(key, settings.home)
        case "unlearner":
            from service.processes.unlearner_process import run as unlearn

            with _kept_running():
                unlearn(settings, notify_ready, name, restarts)
        case "worker":
            from service.unlearner.workers import follow

            with stopped_by_signals(), _kept_running():
                follow(settings, notify_ready)
        case "api":
            from service.processes.api_process import run as answer

            assert listener is not None
            with _kept_running():
                answer(settings, listener, notify_ready, name, restarts, beside)
        case _:
            assert_never(work)


@contextlib.contextmanager
def _kept_running() -> Iterator[None]:
    """Exit with `MAY_PASS` after failures that a restart may avoid: outages and unforeseen errors.

    Errors with a remedy for the user pass through to the caller's report, because no restart succeeds before it is
    applied.
    """
    try:
        yield
    except DatabaseDamaged:
        raise
    except Unavailable as error:
        report_error(error)
        raise SystemExit(MAY_PASS) from None
    except ExplainedError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None and error.errno in _REFUSED_PATH:
            raise
        # Without the error's text, which may quote somebody's input.
        logging.getLogger(__name__).critical("The process fails.", exc_info=error)
        raise SystemExit(MAY_PASS) from None


def _adopted(descriptor: int) -> socket.socket:
    """Return the socket of an inherited descriptor, without passing it on to this process's children."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


def _read(channel: socket.socket) -> dict[str, Any]:
    with channel.makefile("rb") as lines:
        line = lines.readline()
    if not line.endswith(b"\n"):
        raise SystemExit(1)  # the supervisor has died
    handover: dict[str, Any] = json.loads(line)
    return handover


if __name__ == "__main__":
    main()
