"""Every command in the documents is run as printed, or parsed if it cannot run here."""

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from model_store.datasets.load import load_dataset
from tests.support.documents.newcomer import Newcomer, checkout
from tests.support.documents.shown import PAGES, Command, commands
from tests.support.everyday import everyday
from tests.support.models.trained_models import Models
from tests.support.preloaded import ROOT, Start
from tests.support.processes.lethe_process import LetheProcess, copied

#: Prefixes of commands that are not run here, with the reason; the shell still parses each.
NOT_HERE = {
    "./lethe serve": "runs until it is stopped; pages are followed beside one that runs, and its options are checked",
    "LETHE_HOME=mine ./lethe serve": "the same",
    "./lethe train --nodes": "needs tables: tests/documents/test_tables_guide.py follows that section",
    "LETHE_HOME=users ./lethe": "the same",
    "python3 -m venv ~/lethe": "asks the index; tests/packaging installs a checkout and serves",
    "~/lethe/bin": "the same",
    "LETHE_WORKERS_ADDRESS=10.0.0.1 ./lethe serve": "the same, on hosts of which there is one",
    "torchrun": "the same: tests/running/test_torchrun.py",
    "LETHE_WORKERS=4 docker compose": "there is no Docker engine",
    "./lethe test": "runs this test too; with arguments, it is run by a test of its own",
    "./lethe check": "what is run beside the tests; tests/documents/test_launcher.py runs its stubs",
    "./lethe reproduce --seeds": "takes days; `--quick` runs all of it on a small graph",
    "./lethe reproduce injection": "takes minutes; the same",
    "./lethe reproduce --quick": "needs a checkout, to record its commit; `.ci/run` runs it",
    "./lethe reproduce report": "needs a checkout too; `--quick` writes a report as well",
    "python -m benchmarks.observer.measure": "takes hours",
    "python -m docs.observer_table": "needs the figures of a measurement",
    "/opt/lethe": "needs two versions of Lethe, and there is one",
    "systemctl": "needs systemd",
    "./lethe recover": "needs a store and a database of two moments: tests/recovering/test_restore.py",
    "export DATABASE_URL": "a server of your own",
    "export REDIS_URL": "a server of your own",
    "export LETHE_API_DATABASE_URL": "a server of your own",
    "export LETHE_UNLEARNER_DATABASE_URL": "a server of your own",
    "export LETHE_LEDGER": "another disk, or a bucket: tests/recovering/test_lost_everything.py",
    "export AWS_ENDPOINT_URL": "the same",
    "psql": "a server of your own, and a client that Lethe does not bring",
    "pg_dump": "a server of your own, and a client that Lethe does not bring",
    "dropdb": "the same",
    "createdb": "the same",
    "pg_restore": "the same",
    'cp -a "$LETHE_MODEL"': "the model is in the home",
    'cp -a "$LETHE_HOME"': "the home beside a server of your own; that of private servers is copied",
    "cat > .env": "for Docker",
    "chmod 600 .env": "for Docker",
    "docker/build-here.sh": "takes minutes, root and buildah; tests/packaging/test_image.py runs it",
    "docker compose": "there is no Docker engine; tests/documents/test_deployment.py reads what it reads",
    ".venv/bin/python -m examples.connectors": "runs until it is stopped: tests/webhooks/test_connectors.py",
    ".venv/bin/alembic revision": "adds a file to the checkout; tests/migrations makes one in a copy",
    "grep '==' requirements": "asks the index; tests/documents/test_requirements.py reads what it writes",
    "git clean": "a checkout, which a copy is not; tests/packaging makes the wheels",
    "python3 -m pip wheel": "asks the index for what builds them; tests/packaging makes the wheels",
}
SHOWN = [command for page in PAGES for command in commands(page)]
#: Commands that run some of the tests; plain `./lethe test` would run this one too.
SOME_TESTS = [
    each for each in SHOWN if each.text.startswith("./lethe test") and shlex.split(each.text, comments=True)[2:]
]
#: Settings of a page's first Lethe, by the page's name.
SETTINGS: Mapping[str, Mapping[str, object]] = {
    # Late batches, so that the page can show a waiting request.
    "api.md": {"max_wait_ms": 1500, "max_predicted_nodes": 2},
}
_BENCHMARK = re.compile(r"(?:python|python3) -m ((?:benchmarks|docs|examples)\.[\w.]+)((?: [\w./:-]+)*)")


def reason(command: Command) -> str | None:
    """Return why it is not run here; None if it is."""
    return next((why for begins, why in NOT_HERE.items() if command.text.startswith(begins)), None)


def test_a_shell_understands_what_is_shown() -> None:
    for command in SHOWN:
        done = subprocess.run(["bash", "-n", "-c", command.text], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_every_reason_is_that_of_a_command() -> None:
    for begins in NOT_HERE:
        assert any(command.text.startswith(begins) for command in SHOWN), begins


class Parsed(Exception):
    """A program accepted its options."""


def benchmarks_shown() -> list[tuple[str, str]]:
    """Return modules and arguments of every `python -m …` in blocks and spans of the documents and decisions."""
    text = "\n".join(page.read_text() for page in [*PAGES, *sorted(ROOT.glob("docs/adr/*.md"))])
    return sorted(set(_BENCHMARK.findall(text.replace("\n", " "))))


@pytest.mark.parametrize(("module", "arguments"), benchmarks_shown())
def test_a_program_understands_the_arguments_that_are_shown(
    module: str, arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not arguments:
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file()
        return
    import argparse

    parse = argparse.ArgumentParser.parse_args

    def parse_alone(parser: argparse.ArgumentParser, *given: Any) -> None:
        parse(parser, *given)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_alone)
    monkeypatch.setattr(sys, "argv", [module, *shlex.split(arguments)])
    with pytest.raises(Parsed):
        importlib.import_module(module).main()


@pytest.fixture
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("trained"))


def prepare(folder: Path, model: Path) -> None:
    """Create what pages assume: the reader's dataset, a newly trained model, earlier deletions."""
    cora = load_dataset("cora", data_dirs=[])
    assert isinstance(cora.features, sp.csr_array)
    edges = np.stack(cora.adjacency.nonzero()).astype(np.int64)
    ids = np.array([f"user-{number}" for number in range(len(cora.labels))])
    for name in ("my-graph.npz", "embeddings.npz"):
        np.savez(folder / name, edge_index=edges, y=cora.labels, x=cora.features.toarray(), node_ids=ids)
    (folder / "encoder.pt").write_bytes(b"an encoder's weights")
    copied(model, folder / "models" / "cora-new")
    (folder / "forgotten.txt").write_text("2001\n2002\n")
    np.save(folder / "forgotten.npy", cora.features[[2001, 2002]].toarray())


def type_all(newcomer: Newcomer, page: Path) -> None:
    """Type the commands of a page that are run here, in their order."""
    typed = [command for command in commands(page) if reason(command) is None]
    wrong = [found for command in typed if (found := newcomer.follow(command)) is not None]
    assert not wrong, "\n\n".join(wrong)


@pytest.fixture
def follow(tmp_path: Path, lethe_start: Start, models: Models) -> Iterator[Callable[[Path], None]]:
    """Return a function that follows a page from its first command to its last, beside a Lethe that serves Cora."""
    running: list[LetheProcess | Newcomer] = []

    def through(page: Path) -> None:
        folder = checkout(tmp_path / "lethe")
        model = models.trained("cora", cohorts=12)
        prepare(folder, model)
        home = folder / "var"
        home.mkdir(mode=0o700)
        copied(model, home / "model")
        # A budget that suffices even on a busy machine.
        settings: dict[str, Any] = {"repair": "always", "repair_budget": 60, "admin_key": ""}
        settings |= SETTINGS.get(page.name, {})
        lethe = LetheProcess(lethe_start, home, **settings)
        running.append(lethe)
        lethe.start()
        key = (home / "run" / "admin.key").read_text().strip()
        (tmp_path / "backup").mkdir()
        environment = {"LETHE_KEY": key, "LETHE_DEVICE": "cpu"}
        replaced = {
            "http://127.0.0.1:8000": lethe.url,
            "https://lethe.example": lethe.url,
            "/backup/": f"{tmp_path}/backup/",
        }
        newcomer = Newcomer(folder, environment, replaced)
        running.append(newcomer)
        with lethe.client(key) as client:
            if page.name in ("data.md", "guarantees.md"):
                client.wait(client.request_deletion(["2001", "2002"]).id)
        type_all(newcomer, page)

    yield through
    for one in reversed(running):
        one.leave() if isinstance(one, Newcomer) else one.close()


#: A page whose commands need no running Lethe.
GUIDE = ROOT / "CONTRIBUTING.md"
#: `.ci/run` follows the readme and the guide; the other pages take minutes.
PAGES_TO_FOLLOW = sorted({command.page for command in SHOWN if reason(command) is None} - {GUIDE})


@pytest.mark.ci
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", everyday(PAGES_TO_FOLLOW, ROOT / "README.md"), ids=lambda page: page.name)
def test_a_page_does_what_it_shows(page: Path, follow: Callable[[Path], None]) -> None:
    follow(page)


@pytest.mark.ci
def test_the_contributing_guide_does_what_it_shows(tmp_path: Path) -> None:
    newcomer = Newcomer(checkout(tmp_path / "lethe"), {}, {})
    try:
        type_all(newcomer, GUIDE)
    finally:
        newcomer.leave()


@pytest.mark.slow
@pytest.mark.parametrize("command", SOME_TESTS, ids=str)
def test_tests_that_are_shown_run(command: Command, tmp_path: Path) -> None:
    newcomer = Newcomer(checkout(tmp_path / "lethe"), {}, {})
    try:
        wrong = newcomer.follow(command)
    finally:
        newcomer.leave()
    assert wrong is None, wrong
