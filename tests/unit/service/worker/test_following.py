"""A worker's side of several workers: what it outlasts, and what it holds while others compute without it."""

import contextlib
import socket
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from model_store.errors import NotAStore
from projector.parallel.meeting import Meeting
from service.settings import Settings
from service.worker.following import follow
from tests.support.processes.workers import free_port

ADDRESS = "127.0.0.1"


def test_an_unlearner_that_ends_while_a_worker_comes_to_it_is_waited_for_again(tmp_path: Path) -> None:
    port = free_port()
    settings = Settings(model=tmp_path, device="cpu", workers_port=port, lease_ttl_s=1.0)
    over, opened = threading.Event(), []

    def end_and_begin_again(ending: socket.socket) -> None:
        with ending:
            ending.settimeout(0.05)
            while not over.is_set() and not any(line["event"] == "workers.lost" for line in log):
                with contextlib.suppress(TimeoutError):
                    ending.accept()[0].close()
        opened.append(Meeting(ADDRESS, port, settings.lease_ttl_s))
        opened[0].begin('{"folder": "0-0", "digest": "", "deleted_edges": []}')

    with capture_logs() as log:
        unlearner = threading.Thread(target=end_and_begin_again, args=(socket.create_server((ADDRESS, port)),))
        unlearner.start()
        try:
            # It has come to the second meeting, and there is no model in its folder.
            with pytest.raises(NotAStore):
                follow(settings, lambda: None)
        finally:
            over.set()
            unlearner.join()
