"""The listening socket changes hands once, between Lethes of one kind, and stays where it was if a successor fails."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from service.errors import AlreadyRunning, ConfigurationError, LetheError, Unavailable
from service.predictions import layout
from service.predictions.layout import Layout, OtherPublicationFormat
from service.processes import serving
from service.processes.api_process import Server, server_config
from service.processes.listening import notify_service_manager, own_number
from service.processes.serving import Work, child, serve
from service.processes.takeover import offered, predecessor
from service.settings import Settings


@contextmanager
def running(home: Path, role: str | None = None) -> Iterator[tuple[socket.socket, threading.Event]]:
    """Run a Lethe's side; yields its listening socket, and an event that is set when a successor has confirmed."""
    taken, over = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as bound, offered(home, 1, bound, role) as offer:

        def look() -> None:
            while not over.wait(0.005):
                if offer.is_taken():
                    taken.set()

        looking = threading.Thread(target=look)
        looking.start()
        try:
            yield bound, taken
        finally:
            over.set()
            looking.join()


def test_a_successor_accepts_on_the_same_socket_and_confirms_once(tmp_path: Path) -> None:
    with running(tmp_path) as (bound, taken), predecessor(tmp_path, None, "127.0.0.1", 0) as old:
        assert old is not None
        assert (old.number, old.listener.getsockname()) == (1, bound.getsockname())
        # A connection that waits in the queue is not lost when the first holder closes.
        with socket.create_connection(bound.getsockname()) as waiting:
            bound.close()
            accepted, _ = old.listener.accept()
            with accepted:
                accepted.sendall(b"answered")
                assert waiting.recv(8) == b"answered"
        assert not taken.is_set()
        old.replace()
        old.replace()
        assert taken.wait(10)


def test_nothing_changes_if_a_successor_ends_before_it_confirms(tmp_path: Path) -> None:
    with running(tmp_path) as (bound, taken):
        with (
            predecessor(tmp_path, None, "127.0.0.1", 0),
            pytest.raises(AlreadyRunning, match="another Lethe is already taking over"),
            predecessor(tmp_path, None, "127.0.0.1", 0),
        ):
            pass
        with predecessor(tmp_path, None, "127.0.0.1", bound.getsockname()[1]) as old:
            assert old is not None
        assert not taken.is_set()


def test_a_successor_that_is_not_ready_in_time_drains_and_leaves_the_running_one_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Supervisor:
        ready = False

        def __init__(self, stages: object, *, on_look: Callable[[], None], **_: object) -> None:
            self._look = on_look

        def is_ready(self, stage: int) -> bool:
            return self.ready

        def is_stopping(self) -> bool:
            return bool(asked)

        def retire(self) -> None:
            asked.append("drain")

        def stop(self) -> None: ...

        def run(self) -> None:
            self._look()

    monkeypatch.setattr(serving, "Supervisor", Supervisor)
    monkeypatch.setattr(serving, "configure_logging", lambda *_, **__: None)
    urls: dict[str, Any] = {"database_url": "postgresql://u:p@localhost/d", "redis_url": "redis://localhost"}
    settings = Settings(home=tmp_path, port=0, **urls)
    with own_number(tmp_path, "api") as number, running(tmp_path, "api") as (_, taken):
        assert number == 1
        # It has time left.
        serve(settings, 1, "api", replace=True)
        assert asked == []
        monkeypatch.setattr(serving, "_TAKEOVER_S", -1.0)
        with pytest.raises(Unavailable, match="The running one continues"):
            serve(settings, 1, "api", replace=True)
        assert asked == ["drain"]
        assert not taken.is_set()
        Supervisor.ready = True
        serve(settings, 1, "api", replace=True)
        assert taken.wait(10)


def test_a_second_successor_never_gets_the_socket_of_a_lethe_that_was_replaced(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound, offered(tmp_path, 1, bound, None) as offer:
        path = str(tmp_path / "run" / "takeover" / "1.sock")
        with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
            first.connect(path)
            first.sendall(b"whole")
            assert not offer.is_taken()
            _, descriptors, *_ = socket.recv_fds(first, 4096, 1)
            socket.socket(fileno=descriptors[0]).close()
            # Both arrive between two looks of the supervisor.
            first.sendall(b"!")
            second.connect(path)
            second.sendall(b"whole")
            assert offer.is_taken()
            second.settimeout(5)
            with pytest.raises(ConnectionResetError):
                second.recv(1)
        # Like the socket of a killed one, until its file is removed.
        with predecessor(tmp_path, None, "127.0.0.1", 0) as none:
            assert none is None


@pytest.mark.parametrize(
    ("role", "port", "refused"),
    [("api", 0, "it runs the part 'whole', and this is 'api'"), (None, 1, "answers at http://127.0.0.1:")],
)
def test_only_the_same_parts_at_the_same_address_take_over(
    tmp_path: Path, role: str | None, port: int, refused: str
) -> None:
    with (
        running(tmp_path),
        pytest.raises(ConfigurationError, match=refused),
        predecessor(tmp_path, role, "127.0.0.1", port),
    ):
        pass


def test_the_socket_of_a_killed_lethe_counts_for_nothing(tmp_path: Path) -> None:
    with predecessor(tmp_path, None, "127.0.0.1", 0) as none:
        assert none is None
    (tmp_path / "run" / "takeover").mkdir(parents=True)
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "run" / "takeover" / "1.sock"))
    left.close()
    with predecessor(tmp_path, None, "127.0.0.1", 0) as none:
        assert none is None


def test_a_publication_of_another_format_is_refused_before_anything_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    publication = Layout.make(home, tmp_path / "share", 1, room=0)
    publication.model.mkdir()
    (publication.model / layout.MANIFEST).write_bytes(b"")
    monkeypatch.setattr(layout, "document_of", lambda content, path: b'{"format": 0}')
    with (
        running(home) as (_, taken),
        pytest.raises(OtherPublicationFormat, match="stop the running Lethe, then start this one"),
        predecessor(home, None, "127.0.0.1", 0),
    ):
        pass
    assert not taken.is_set()


def test_a_process_drained_before_it_serves_accepts_nothing() -> None:
    server = Server()
    server.drain()
    with socket.create_server(("127.0.0.1", 0)) as bound:
        server.serve(server_config(FastAPI()), bound)


@pytest.mark.parametrize("work", ["prepare", "api", "worker", "unlearner"])
def test_only_the_unlearner_inherits_the_credentials_of_the_ledger_s_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Work
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    given = child(work, Settings(home=tmp_path)).environment
    assert ("AWS_SECRET_ACCESS_KEY" in given) == (work == "unlearner")


def test_systemd_learns_that_it_is_ready_if_it_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notify_service_manager()
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    notify_service_manager()
    assert "service_manager.unreachable" in capsys.readouterr().out
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        notify_service_manager()
        assert manager.recv(64) == b"READY=1"


@pytest.mark.parametrize(("role", "workers"), [("unlearner", 1), ("prepare", 1), (None, 2)])
def test_parts_that_have_no_socket_or_share_a_port_are_not_replaced(
    tmp_path: Path, role: str | None, workers: int
) -> None:
    settings = Settings(home=tmp_path / "home", workers=workers)
    with pytest.raises(LetheError, match="--replace"):
        serve(settings, 1, role, replace=True)  # type: ignore[arg-type]
