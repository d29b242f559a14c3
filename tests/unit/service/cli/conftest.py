"""The command line against a stub of the service."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients.command_line import CommandLine
from tests.support.clients.lethe_stub import LetheStub


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset all LETHE_ variables."""
    for name in [name for name in os.environ if name.startswith("LETHE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def in_a_folder(unset: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in an empty folder, which is also the home of the account."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def stub() -> Iterator[LetheStub]:
    with LetheStub({}) as stub:
        yield stub


@pytest.fixture
def lethe(
    stub: LetheStub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> CommandLine:
    monkeypatch.setenv("LETHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LETHE_URL", stub.url)
    monkeypatch.setenv("LETHE_KEY", "the key")
    return CommandLine(capsys)
