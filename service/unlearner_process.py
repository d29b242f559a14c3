"""The process that unlearns. A stand-in until it has a composition root: the application does both (`api_process`)."""

import signal
from collections.abc import Callable

from service.listening import stopped_by_signals
from service.settings import Settings


def run(settings: Settings, tell_ready: Callable[[], None]) -> None:
    """Say that it is ready, and wait for SIGTERM."""
    with stopped_by_signals():
        tell_ready()
        while True:
            signal.pause()
