"""The slow sweeps, `./lethe test --slow`, resume where they were interrupted.

Passed cases are not repeated while no source file has changed; a complete run forgets them. Other runs neither collect
tests that they leave out nor import modules that have only such tests. A test or file that is named runs also if it is
marked `ci`.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.everyday import CI, EVERYDAY, LEFT_OUT
from tests.support.preloaded import ROOT

_FOLDERS = ("projector", "model_store", "service", "lethe_client", "benchmarks", "tests")


def _left_out(config: pytest.Config) -> tuple[str, ...]:
    """Return the marks of the tests that this run leaves out, if it takes whole files and folders."""
    is_whole = not any("::" in given for given in config.args)
    return LEFT_OUT.get(config.option.markexpr, ()) if is_whole else ()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_module = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    left_out = _left_out(config)
    if not is_module or not left_out or any(collection_path.name in given for given in config.args):
        return None
    mark_of_all = rf"^pytestmark = .*\bpytest\.mark\.({'|'.join(left_out)})\b"
    return True if re.search(mark_of_all, collection_path.read_text(), re.MULTILINE) else None


def pytest_pycollect_makeitem(collector: pytest.Collector, obj: Any) -> list[pytest.Item] | None:
    left_out = _left_out(collector.config)
    marks = getattr(obj, "pytestmark", ())
    return [] if callable(obj) and any(mark.name in left_out for mark in marks) else None


class _Progress:
    """Passed cases, in a file of pytest's cache: the state of the sources, then an id per line."""

    def __init__(self, config: pytest.Config) -> None:
        self._path = Path(config.rootpath, ".pytest_cache", "passed-slow-tests")
        self._is_worker = hasattr(config, "workerinput")
        self._sources = _state_of_sources()
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self._passed = set(lines[1:]) if lines[:1] == [self._sources] else set()
        self._resumed = 0

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        passed = [item for item in items if item.nodeid in self._passed and item.get_closest_marker("slow")]
        if passed:
            items[:] = [item for item in items if item not in set(passed)]
            config.hook.pytest_deselected(items=passed)

    def pytest_sessionstart(self) -> None:
        if not self._is_worker and not self._passed:
            self._path.parent.mkdir(exist_ok=True)
            self._path.write_text(f"{self._sources}\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self._is_worker and report.when == "call" and report.passed and "slow" in report.keywords:
            with self._path.open("a") as file:
                file.write(f"{report.nodeid}\n")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if not self._is_worker and exitstatus != pytest.ExitCode.INTERRUPTED:
            self._path.unlink(missing_ok=True)

    def pytest_report_header(self) -> str | None:
        return f"resuming: {len(self._passed)} slow cases have passed" if self._passed else None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    option, names_tests = config.option, any("::" in given for given in config.args)
    if option.markexpr == EVERYDAY and (names_tests or any(given.endswith(".py") for given in config.args)):
        option.markexpr = CI
    if option.markexpr == "slow or not slow" and not option.collectonly and not names_tests:
        config.pluginmanager.register(_Progress(config))


def _state_of_sources() -> str:
    digest = hashlib.sha256()
    for path, changed in sorted(_sources()):
        digest.update(f"{path} {changed}\n".encode())
    return digest.hexdigest()


def _sources() -> Iterator[tuple[str, int]]:
    for folder in _FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            yield str(path), path.stat().st_mtime_ns
