"""This version goes on with the database, keys and records of the last version at the first migration.

The format of models has changed since then. So the model is trained again, as the refusal says, and `recover` repeats
all deletions.
"""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.db import schema
from tests.support.clients.command_line import CommandLine
from tests.support.preloaded import ROOT, Start, fresh
from tests.support.processes.lethe_process import LetheProcess, figures_of

#: The second migration; the commit before the one that added it is the last at `r0001`.
SECOND = "migrations/versions/r0002_additions.py"


def checked_out(folder: Path) -> Start:
    """Write the last version at `r0001` to a folder, and return what starts its command line."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", "-C", ROOT, *arguments], check=True, stdout=subprocess.PIPE).stdout

    added = git("log", "--diff-filter=A", "--format=%H", "--", SECOND).decode().split()
    assert added, "the history is not here: git fetch --unshallow"
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", folder], input=git("archive", f"{added[-1]}^"), check=True)
    start = fresh(sys.executable, "-P", "-m", "service.cli")
    return lambda arguments, environment, home, log: start(
        arguments, {**environment, "PYTHONPATH": str(folder)}, home, log
    )


@pytest.mark.slow
@pytest.mark.needs("git")
def test_this_version_goes_on_where_the_last_one_at_the_first_migration_stopped(
    tmp_path: Path,
    empty_database_url: str,
    redis_url: str,
    lethe_start: Start,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home, dataset = tmp_path / "home", "synthetic:n=60,d=8,classes=3,seed=0"
    settings: dict[str, Any] = {
        "database_url": empty_database_url,
        "redis_url": redis_url,
        "dataset": dataset,
        "api_workers": 1,
    }
    with LetheProcess(checked_out(tmp_path / "r0001"), home, **settings).start() as before:
        done = before.delete(["1", "2"], reference="ticket 7")
        assert done.status == "completed"
        assert before.stop().status == 0
    assert asyncio.run(schema.current(empty_database_url)) == "r0001"

    now = LetheProcess(lethe_start, home, **settings)
    refused = now.try_to_start()
    assert refused is not None
    assert "run `./lethe recover`, which repeats all deletions" in " ".join(refused.stderr.split())
    assert asyncio.run(schema.current(empty_database_url)) == "r0001", "nothing has changed"

    name = figures_of(home / "model")["name"]
    (home / "model").rename(tmp_path / "earlier model")
    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    lethe = CommandLine(capsys)
    trained = lethe("train", "--dataset", dataset, "--name", name, "--out", home / "model", "--device", "cpu")
    assert trained.status == 0, trained.stderr
    recovered = lethe("recover", "--home", home, "--repair", "never", "--device", "cpu")
    assert recovered.status == 0, recovered.stderr
    assert asyncio.run(schema.current(empty_database_url)) == schema.head()

    with now.start():
        assert sorted(now.predict(["1", "2", "3"]).deleted) == ["1", "2"]
        with now.client() as client:
            kept = client.deletion(done.id)
        assert (kept.status, kept.received_at, kept.completed_at) == ("completed", done.received_at, done.completed_at)
        assert now.delete(["3"]).status == "completed"
        assert now.stop().status == 0
