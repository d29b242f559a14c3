"""The command line against a stub of the service."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients.command_line import CommandLine
from tests.support.clients.lethe_stub import LetheStub


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
