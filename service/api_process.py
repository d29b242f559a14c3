"""A process that answers requests. A stand-in until it has a composition root: the application that does all."""

import socket
from collections.abc import Callable

from service.listening import stopped_by_signals
from service.settings import Settings


def run(settings: Settings, bound: socket.socket, tell_ready: Callable[[], None], name: str) -> None:
    """Answer on `bound` until SIGTERM; `tell_ready` is called once everything works, `name` is this process' own."""
    from service.app import serve_alone

    with stopped_by_signals() as hand_over:
        serve_alone(settings, bound, tell_ready, hand_over)
