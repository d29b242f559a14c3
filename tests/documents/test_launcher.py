"""The launcher sets itself up once, again when necessary, and passes on its arguments."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.preloaded import ROOT

LAUNCHER = ROOT / "lethe"
TOOLS = ("sh", "cat", "cmp", "dirname", "getconf", "mkdir", "mv", "nproc", "readlink", "rm", "sort", "wc")
#: Makes real virtual environments, but with a pip that only records its calls: tests check when it is called.
PYTHON = """#!/bin/sh
if [ "${{1-}} ${{2-}}" = "-m venv" ]; then
    for last; do :; done
    rm -rf "$last" && cp -a "{made}" "$last" || exit 1
    for site in "$last"/lib/python*/site-packages; do cp "{stubs}"/*.py "$site"; done
    exit 0
fi
exec "{python}" "$@"
"""
PIP = """
import os, pathlib, sys, threading
folder = pathlib.Path(os.environ["NOTES"])
if "--require-hashes" in sys.argv:
    locks = [pathlib.Path(name) for name in sys.argv if name.endswith(".lock")]
    (folder / "hashed").write_text(" ".join(lock.name for lock in locks if lock.exists()))
elif "install" in sys.argv:
    with (folder / "installs").open("a") as notes:
        notes.write(pathlib.Path(sys.argv[-1]).name + "\\n")
    while (folder / "hold").exists():
        threading.Event().wait(0.01)
    if (folder / "fail").exists():
        sys.exit("ERROR: no network")
"""
ECHO = """
import json, os, sys
print(json.dumps({"arguments": sys.argv[1:], "cwd": os.getcwd(), "file": __file__,
                  "threads": os.environ["OMP_NUM_THREADS"], "wait": os.environ["OMP_WAIT_POLICY"],
                  "timeout": os.environ["OPENBLAS_THREAD_TIMEOUT"],
                  "data": os.environ.get("LETHE_DATA_DIR")}))
"""


@dataclass
class Clone:
    """A folder with the launcher and its minimum, and a PATH with a Python that records pip's arguments."""

    root: Path
    path: Path
    notes: Path
    environment: dict[str, str] = field(default_factory=dict)

    def popen(self, *arguments: str, cwd: Path | None = None, program: Path | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [program or self.root / "lethe", *arguments],
            cwd=cwd or self.root,
            env={"PATH": str(self.path), "NOTES": str(self.notes), **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self, *arguments: str, cwd: Path | None = None, program: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        process = self.popen(*arguments, cwd=cwd, program=program)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def received(self, *arguments: str, cwd: Path | None = None, program: Path | None = None) -> dict[str, Any]:
        """Run the launcher and return what the program that it started received."""
        import json

        done = self.run(*arguments, cwd=cwd, program=program)
        assert done.returncode == 0, done.stderr
        received: dict[str, Any] = json.loads(done.stdout)
        return received

    @property
    def installs(self) -> list[str]:
        file = self.notes / "installs"
        return file.read_text().split() if file.exists() else []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment, made once and then copied."""
    folder = tmp_path_factory.mktemp("made") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


@pytest.fixture
def clone(tmp_path: Path, made: Path) -> Clone:
    root, path, notes = tmp_path / "a clone", tmp_path / "bin", tmp_path / "notes"
    for folder in (root / "service" / "cli", path, notes, tmp_path / "stubs"):
        folder.mkdir(parents=True)
    shutil.copy(LAUNCHER, root / "lethe")
    (root / "requirements.txt").write_text("one==1\n")
    (root / "requirements-downloads.txt").write_text("three==3\n")
    (root / "requirements-tables.txt").write_text("four==4\n")
    (root / "requirements-traces.txt").write_text("five==5\n")
    (root / "requirements-dev.txt").write_text("two==2\n")
    for part in ("", "-downloads", "-tables", "-traces", "-dev"):
        (root / f"requirements{part}.lock").write_text("# nothing\n")
    (root / "service" / "cli" / "__main__.py").write_text(ECHO)
    (tmp_path / "stubs" / "pip.py").write_text(PIP)
    (tmp_path / "stubs" / "pytest.py").write_text(ECHO)
    for tool in TOOLS:
        found = shutil.which(tool)
        if found is not None:
            (path / tool).symlink_to(found)
    (path / "cp").symlink_to(shutil.which("cp") or "/bin/cp")
    python = path / "python3.12"
    python.write_text(PYTHON.format(python=sys.executable, made=made, stubs=tmp_path / "stubs"))
    python.chmod(0o755)
    return Clone(root, path, notes)


def test_arguments_and_the_current_folder_are_handed_over_untouched(clone: Clone, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "service" / "cli").mkdir(parents=True)
    (elsewhere / "service" / "cli" / "__main__.py").write_text("raise SystemExit('a stranger')")

    received = clone.received("train", "--out", "a b", "", "*", "--slow", cwd=elsewhere)

    assert received["arguments"] == ["train", "--out", "a b", "", "*", "--slow"]
    assert received["cwd"] == str(elsewhere)
    assert received["file"] == str(clone.root / "service" / "cli" / "__main__.py")


def test_it_works_through_symbolic_links(clone: Clone, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "first").symlink_to(clone.root / "lethe")
    (tmp_path / "links" / "second").symlink_to("first")

    received = clone.received("serve", program=tmp_path / "links" / "second", cwd=tmp_path)

    assert received["file"] == str(clone.root / "service" / "cli" / "__main__.py")


def test_requirements_are_installed_once_and_again_when_they_change(clone: Clone) -> None:
    first = clone.run("serve")
    assert "a few minutes" in first.stderr
    assert clone.run("serve").stderr == ""
    assert clone.installs == ["requirements-tables.txt"]

    (clone.root / "requirements.txt").write_text("one==2\n")
    clone.run("serve")

    assert clone.installs == ["requirements-tables.txt"] * 2


@pytest.mark.parametrize(
    ("command", "locks"),
    [
        ("serve", "requirements.lock requirements-downloads.lock requirements-tables.lock"),
        (
            "test",
            "requirements.lock requirements-downloads.lock requirements-tables.lock requirements-traces.lock "
            "requirements-dev.lock",
        ),
    ],
)
def test_what_has_hashes_is_installed_by_them_first(command: str, locks: str, clone: Clone) -> None:
    clone.received(command)
    assert (clone.notes / "hashed").read_text() == locks


def test_a_step_that_the_system_refuses_says_what_to_do(clone: Clone) -> None:
    clone.received("serve")
    (clone.root / ".venv" / "installed").unlink()
    # Root may write anywhere, but `rm -f` removes no folder.
    (clone.root / ".venv" / "installed").mkdir()
    refused = clone.run("serve")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "cannot be written; see above. Run this as its owner" in refused.stderr

    (clone.root / "requirements.txt").unlink()
    refused = clone.run("serve")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"lethe: {clone.root}/requirements.txt cannot be read. Restore it")


def test_completion_sets_nothing_up(clone: Clone) -> None:
    clone.environment["_LETHE_COMPLETE"] = "complete_bash"
    unready = clone.run()
    assert (unready.returncode, unready.stdout, unready.stderr, clone.installs) == (1, "", "", [])

    del clone.environment["_LETHE_COMPLETE"]
    clone.run("serve")
    clone.environment["_LETHE_COMPLETE"] = "complete_bash"
    assert clone.received()["arguments"] == []


def test_the_tests_install_what_they_need_on_top(clone: Clone) -> None:
    clone.run("test")
    clone.run("test")
    clone.run("serve")
    assert clone.installs == ["requirements-dev.txt"]

    (clone.root / "requirements-dev.txt").write_text("two==3\n")
    clone.run("serve")
    assert clone.installs == ["requirements-dev.txt"]
    clone.run("test")
    assert clone.installs == ["requirements-dev.txt"] * 2


def test_the_tests_run_in_the_root_with_their_arguments(clone: Clone, tmp_path: Path) -> None:
    received = clone.received("test", "-n0", "-k", "a b", "tests/unit", cwd=tmp_path)

    assert received["cwd"] == str(clone.root)
    assert received["arguments"] == ["-n0", "-k", "a b", "tests/unit"]
    assert clone.received("test", "-x", "-n0", "--slow")["arguments"] == ["-m", "slow or not slow", "-x", "-n0"]
    assert clone.received("test", "--ci", "-n0")["arguments"] == ["-m", "not slow", "-n0"]


def test_the_tests_use_every_core_by_default(clone: Clone) -> None:
    *parallel, last = clone.received("test", "-x")["arguments"]

    assert last == "-x"
    shared = ["--dist", "loadfile", "--no-loadscope-reorder"]
    assert not parallel or (parallel[0], int(parallel[1]) > 1, parallel[2:]) == ("-n", True, shared)


def test_the_papers_claims_are_measured_with_what_the_tests_need(clone: Clone, tmp_path: Path) -> None:
    (clone.root / "benchmarks").mkdir()
    (clone.root / "benchmarks" / "reproduce.py").write_text(ECHO)

    received = clone.received("reproduce", "injection", "--dataset", "a b", cwd=tmp_path)

    assert received["arguments"] == ["injection", "--dataset", "a b"]
    assert (received["cwd"], received["file"]) == (str(tmp_path), str(clone.root / "benchmarks" / "reproduce.py"))
    assert clone.installs == ["requirements-dev.txt"]


def test_check_runs_every_tool_in_the_root_and_fails_when_one_does(clone: Clone, tmp_path: Path) -> None:
    clone.run("test")
    for tool in ("ruff", "mypy", "lint-imports"):
        program = clone.root / ".venv" / "bin" / tool
        program.write_text(f'#!/bin/sh\necho "$PWD: {tool} $*"\ntest ! -e "$NOTES/{tool} fails"\n')
        program.chmod(0o755)

    passed = clone.run("check", cwd=tmp_path)
    (clone.notes / "ruff fails").touch()
    failed = clone.run("check")

    ran = [line.removeprefix(f"{clone.root}: ").strip() for line in passed.stdout.splitlines() if "==" not in line]
    assert ran == ["ruff check .", "ruff format --check .", "mypy", "lint-imports"]
    assert (passed.returncode, failed.returncode) == (0, 1)
    assert failed.stdout == passed.stdout
    assert clone.installs == ["requirements-dev.txt"]


def test_a_failed_installation_is_reported_and_tried_again(clone: Clone) -> None:
    (clone.notes / "fail").touch()
    failed = clone.run("serve")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert "installing requirements.txt requirements-downloads.txt requirements-tables.txt failed" in failed.stderr
    assert "ERROR: no network" in failed.stderr

    (clone.notes / "fail").unlink()
    clone.received("serve")

    assert clone.installs == ["requirements-tables.txt"] * 2


def test_an_interrupted_installation_is_done_again(clone: Clone) -> None:
    (clone.notes / "hold").touch()
    process = clone.popen("serve")
    _wait(lambda: bool(clone.installs))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (clone.notes / "hold").unlink()

    clone.received("serve")

    assert clone.installs == ["requirements-tables.txt"] * 2


def test_two_at_once_install_once(clone: Clone) -> None:
    (clone.notes / "hold").touch()
    first = clone.popen("serve")
    _wait(lambda: bool(clone.installs))
    second = clone.popen("serve")
    assert second.stderr is not None
    assert "waiting for another set-up" in second.stderr.readline()

    (clone.notes / "hold").unlink()

    for process in (first, second):
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert clone.installs == ["requirements-tables.txt"]


def test_an_environment_whose_python_is_gone_is_made_anew(clone: Clone) -> None:
    clone.received("serve")
    for python in (clone.root / ".venv" / "bin").glob("python*"):
        python.unlink()
        python.symlink_to("/nonexistent/python")

    clone.received("serve")

    assert clone.installs == ["requirements-tables.txt"] * 2


@pytest.mark.parametrize("stub", [None, "#!/bin/sh\nexit 1\n"], ids=["none", "too old"])
def test_without_a_fitting_python_it_says_what_to_install(stub: str | None, clone: Clone) -> None:
    (clone.path / "python3.12").unlink()
    if stub is not None:
        (clone.path / "python3").write_text(stub)
        (clone.path / "python3").chmod(0o755)

    refused = clone.run("serve")

    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("lethe: no Python 3.11 or newer")
    assert "Install one" in refused.stderr


def test_numerical_threads_are_bounded_and_may_be_chosen(clone: Clone) -> None:
    received = clone.received("serve")
    assert 1 <= int(str(received["threads"])) <= min(8, os.cpu_count() or 1)
    assert (received["wait"], received["timeout"]) == ("passive", "4")

    clone.environment |= {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "active"}
    received = clone.received("serve")
    assert (received["threads"], received["wait"]) == ("3", "active")


@pytest.mark.parametrize("command", ["serve", "test"])
def test_the_datasets_beside_a_checkout_are_used_unless_the_user_names_a_folder(command: str, clone: Clone) -> None:
    assert clone.received(command)["data"] is None

    beside = clone.root.parent / "shared" / "data"
    beside.mkdir(parents=True)
    assert clone.received(command)["data"] == str(beside)
    clone.environment["LETHE_DATA_DIR"] = ""
    assert clone.received(command)["data"] == str(beside)
    clone.environment["LETHE_DATA_DIR"] = "/the user's own"
    assert clone.received(command)["data"] == "/the user's own"


def test_the_exit_status_is_the_commands_own(clone: Clone) -> None:
    (clone.root / "service" / "cli" / "__main__.py").write_text("raise SystemExit(7)")

    assert clone.run("doctor").returncode == 7


def _wait(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        pause.wait(0.01)
