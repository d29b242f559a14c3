"""Reports a failed test immediately, with the command to run it again; the details follow at the end."""

import shlex

import pytest


class _Failures:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if not report.failed or terminal is None:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        lines = str(report.longrepr).splitlines() if crash is None else crash.message.splitlines()
        terminal.ensure_newline()
        terminal.write_line(f"FAILED in {report.when}: {lines[0] if lines else ''}", red=True)
        option = "--slow " if "slow" in report.keywords else ""
        terminal.write_line(f"  again: ./lethe test -n0 {option}{shlex.quote(report.nodeid)}")


def pytest_configure(config: pytest.Config) -> None:
    # Workers of pytest-xdist report to the process with the terminal.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(config))
