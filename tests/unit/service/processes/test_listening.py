"""The socket, the private files and the delivery of the first key in a serving process."""

import signal
import socket
import stat
import sys
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import msgspec
import pytest

from service.domain.addresses import url_of
from service.errors import ConfigurationError
from service.processes.listening import ServerFacts, facts_file, listen, stopped_by_signals
from service.processes.prepare import deliver


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"Port {port} of 127.0.0.1 is in use") as refused:
            listen("127.0.0.1", port)
    assert "--port" in refused.value.remedy


@pytest.mark.parametrize("host", ["no such host.invalid", "192.0.2.1"])
def test_an_address_of_no_interface_here_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError):
        listen(host, 0)


def test_port_zero_takes_a_free_one_that_the_url_names() -> None:
    with listen("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert url_of(bound) == f"http://127.0.0.1:{port}"
        socket.create_connection(("127.0.0.1", port)).close()


def test_the_url_of_all_interfaces_is_that_of_this_machine() -> None:
    with listen("0.0.0.0", 0) as bound:
        assert url_of(bound).startswith("http://127.0.0.1:")


def test_the_facts_are_private_and_there_only_while_it_serves(tmp_path: Path) -> None:
    path = tmp_path / "run" / "server.json"
    with facts_file(path) as state:
        facts = ServerFacts(1, "http://x", "model", datetime.now(UTC), {"api-0": 2})
        state(facts)
        assert msgspec.json.decode(path.read_bytes(), type=ServerFacts) == facts
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == []


def test_a_new_key_is_shown_on_a_terminal_and_written_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    deliver("lethe_secret", tmp_path)
    assert "lethe_secret" in terminal.getvalue()
    assert list(tmp_path.iterdir()) == []


def test_without_a_terminal_a_new_key_is_in_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    deliver("lethe_secret", tmp_path)
    path = tmp_path / "run" / "admin.key"
    assert path.read_text() == "lethe_secret\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "lethe_secret" not in pipe.getvalue()
    assert str(path) in pipe.getvalue()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_server_starts_ends_the_process_in_order(number: int) -> None:
    with pytest.raises(SystemExit) as ended, stopped_by_signals():
        signal.raise_signal(number)
    assert ended.value.code == 0


def test_a_signal_after_that_stops_the_server_and_leaves_the_block_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stopped: list[bool] = []
    with stopped_by_signals() as hand_over:
        hand_over(lambda: stopped.append(True))
        signal.raise_signal(signal.SIGTERM)
        assert stopped == [True]
    assert signal.getsignal(signal.SIGTERM) is before
