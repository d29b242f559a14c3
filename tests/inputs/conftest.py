"""What the sweeps over inputs ask."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from service.processes import serve
from tests.support.clients.lethe_stub import LetheStub
from tests.support.inputs.asked import Asked, asked
from tests.support.inputs.typed import Typed


@pytest.fixture
async def ask(database_url: str, tmp_path: Path) -> AsyncIterator[Asked]:
    async with asked(database_url, tmp_path / "home") as running:
        yield running


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Typed]:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "something").touch()
    with LetheStub({}) as stub:
        settings = {
            "LETHE_HOME": str(tmp_path / "home"),
            "LETHE_MODEL": str(tmp_path / "model"),
            "DATABASE_URL": "postgresql://lethe@127.0.0.1:1/lethe",
            "REDIS_URL": "redis://127.0.0.1:1/0",
            "LETHE_URL": stub.url,
            "LETHE_KEY": "k",
            "COLUMNS": "500",
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        # What is served is no matter of these tests.
        monkeypatch.setattr(serve, "serve", lambda *_: None)
        yield Typed(capsys)
