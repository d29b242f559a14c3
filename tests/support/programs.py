"""Programs that some tests need and a machine may lack: their tests are skipped, and the last lines say so.

Tests name them by `pytest.mark.needs("chromium")`. `.ci/run` installs those of the tests that it
runs, and fails if one is missing.
"""

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

#: For each program: the names or patterns of its executables, and its Debian package.
_PROGRAMS = {
    "chromium": (("chromium", "chromium-browser", "google-chrome"), "chromium"),
    "promtool": (("promtool",), "prometheus"),
    "git": (("git",), "git"),
    "nginx": (("nginx", "/usr/sbin/nginx"), "nginx-light"),
    "caddy": (("caddy",), "caddy"),
    "pgbouncer": (("pgbouncer", "/usr/sbin/pgbouncer"), "pgbouncer"),
    "systemd-analyze": (("systemd-analyze",), "systemd"),
    # The newest one.
    "initdb": (("/usr/lib/postgresql/*/bin/initdb", "initdb"), "postgresql"),
    "redis-server": (("redis-server", "valkey-server"), "redis-server"),
}
_REASON = "needs "


def find_program(name: str) -> str | None:
    """Return its path, or None if missing. A variable with its name in capitals, such as `CHROMIUM`, overrides it."""
    executables, _ = _PROGRAMS[name]
    paths = (
        path for one in executables for path in (sorted(Path("/").glob(one[1:]), reverse=True) if "*" in one else [one])
    )
    return os.environ.get(name.upper()) or next(filter(None, map(shutil.which, paths)), None)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(program): left out on a machine without this program")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        if find_program(mark.args[0]) is None:
            pytest.skip(_REASON + mark.args[0])


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = (report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    missing = Counter(reason.partition(_REASON)[2] for reason in reasons if _REASON in reason)
    for program, tests in missing.items():
        package = _PROGRAMS[program][1]
        terminalreporter.write_line(f"Left out, since they need {program} (Debian: apt install {package}): {tests}")
