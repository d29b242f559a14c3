"""Datasets that this machine lacks: tests take a made-up graph in their place, and the last lines say so."""

from collections.abc import Generator

import pytest

_PROPERTY = "made-up graph for"
#: Datasets that the running test asked for in vain.
_missing: set[str] = set()


def stands_in(dataset: str) -> None:
    """Note that the running test gets a made-up graph in place of `dataset`."""
    _missing.add(dataset)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    report.user_properties.extend((_PROPERTY, name) for name in sorted(_missing))
    _missing.clear()
    return report


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tests: dict[str, set[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, dataset in getattr(report, "user_properties", ()):
                if name == _PROPERTY:
                    tests.setdefault(dataset, set()).add(report.nodeid)
    for dataset, names in sorted(tests.items()):
        terminalreporter.write_line(f"Tests that ran on a made-up graph because {dataset} was not found: {len(names)}")
