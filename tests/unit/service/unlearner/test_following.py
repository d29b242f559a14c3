"""A worker's side of several workers: what it survives, and what it holds while others compute without it."""

import contextlib
import socket
import threading
import weakref
from pathlib import Path

import msgspec
import pytest
import torch
from structlog.testing import capture_logs

from model_store.datasets.load import load_dataset
from model_store.errors import NotAStore, StoreDamaged
from model_store.store import Store
from projector.forgetting.live_graph import LiveGraph
from projector.graph.graph import Graph
from projector.network.spec import ModelSpec
from projector.parallel.meeting import Meeting, Visit
from service.settings import Settings
from service.unlearner import workers
from service.unlearner.workers import MeetingPlace, Task, follow
from tests.support.models.stored import built
from tests.support.processes.workers import free_port

ADDRESS = "127.0.0.1"


def test_an_unlearner_that_ends_while_a_worker_comes_to_it_is_waited_for_again(tmp_path: Path) -> None:
    port = free_port()
    settings = Settings(model=tmp_path, device="cpu", workers_port=port, lease_ttl_s=1.0)
    over = threading.Event()
    opened: list[Meeting] = []

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
            # It has reached the second meeting, and its folder contains no model.
            with pytest.raises(NotAStore):
                follow(settings, lambda: None)
        finally:
            over.set()
            unlearner.join()


def test_one_that_fails_to_load_what_the_others_have_changed_holds_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(load_dataset("synthetic:n=60,d=8,classes=3,seed=1", data_dirs=[]), ModelSpec()).write(tmp_path / "model")
    store = Store.open(tmp_path / "model")
    ref = store.current()
    meeting = Meeting(ADDRESS, 0, 1.0)
    meeting.begin(msgspec.json.encode(Task(ref.folder, store.version_digest(ref), [])).decode())
    read: list[weakref.ref[Graph]] = []
    held: list[bool] = []

    class Overtaken(Visit):
        def task(self) -> str:
            task = super().task()
            meeting.settle("the digest", 0)
            return task

        def stay(self) -> None:
            held.extend(each() is not None for each in read)

    def changed(graph: Graph, *_: object, **__: object) -> None:
        read.append(weakref.ref(graph))
        raise StoreDamaged("It was changed meanwhile.", "Begin again.")

    monkeypatch.setattr(workers, "Visit", Overtaken)
    monkeypatch.setattr(LiveGraph, "of", changed)
    workers._take_part(MeetingPlace(ADDRESS, meeting.port, 1.0), store.path, torch.device("cpu"))
    assert held == [False]
