"""Every alert fires when it must and not otherwise, as evaluated by Prometheus' own `promtool`.

Debian's package `prometheus` has promtool; `.ci/run` installs it.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.documents.alerts import ALERTS, DOCKER, anchor
from tests.support.preloaded import ROOT
from tests.support.programs import find_program

BY_NAME = {rule["alert"]: rule for rule in ALERTS}
#: Samples of an unlearner and of a standby, which exports unknown values.
UNLEARNER, STANDBY = (f'{{instance="one:8000",job="lethe",process="{name}"}}' for name in ("unlearner", "unlearner2"))
UP = 'up{instance="one:8000",job="lethe"}'
WATCHER = '{instance="elsewhere:9100",job="node"}'
#: An unknown value for an hour.
UNKNOWN = " ".join(["NaN"] * 60)
DAY = 86_400


@dataclass(frozen=True)
class Case:
    """Series for which an alert fires at a time, and for which it does not."""

    fires: dict[str, str]
    quiet: dict[str, str]
    at: str = "30m"
    #: Labels of the alert, besides its name and severity.
    labels: tuple[tuple[str, str], ...] = ()


def always(value: float) -> str:
    """Return a series with a constant value for 40 hours."""
    return f"{value}x2400"


def gauge(name: str, fires: float, quiet: float, at: str = "30m") -> Case:
    """Return the case of an alert on one gauge of unlearners, with a standby."""
    return Case(
        {f"lethe_{name}{UNLEARNER}": always(fires), f"lethe_{name}{STANDBY}": UNKNOWN},
        {f"lethe_{name}{UNLEARNER}": always(quiet), f"lethe_{name}{STANDBY}": UNKNOWN},
        at,
    )


def of(*names: str) -> tuple[str, ...]:
    """Return the unlearner's series of these metrics."""
    return tuple(f"lethe_{name}{UNLEARNER}" for name in names)


[COMPLETED] = of("drill_last_completed_timestamp_seconds")
COHORTS = f"lethe_drill_cohorts_remaining{UNLEARNER}"
[RESTARTS] = of("restarts_total")
QUEUED, BATCHES = of("queued_nodes", "batches_total")
SIZE, SIGNED = of("log_size", "log_signed_size")
ENDED = 'lethe_deletions_ended_total{instance="one:8000",job="lethe",process="unlearner",status="completed"}'
ANSWERED = 'lethe_http_requests_total{{instance="one:8000",job="lethe",process="api-0",status="{}"}}'
EXCEEDED = 'lethe_residual_exceeded_total{instance="one:8000",job="lethe",process="unlearner",residual="span"}'
FREE = f"lethe_memory_available_bytes{UNLEARNER}"
USED = f"process_resident_memory_bytes{UNLEARNER}"
LAST_GOOD = f"lethe_watch_last_good_timestamp_seconds{WATCHER}"
WATCHED = (("instance", "elsewhere:9100"), ("job", "node"))

CASES = {
    "LetheDown": [
        Case({UP: always(0)}, {UP: always(1)}, labels=(("instance", "one:8000"), ("job", "lethe"))),
    ],
    "LetheUnlearnerDown": [
        Case({UP: always(1)}, {UP: always(1), QUEUED: always(0)}),
        # A starting unlearner does not know the number of waiting nodes yet.
        Case({UP: always(1), QUEUED: "0x20 stale"}, {UP: always(1), QUEUED: UNKNOWN}),
        # Without an answer it is unknown whether one runs.
        Case({UP: always(1)}, {UP: always(0)}),
    ],
    "LetheAnswersErrors": [
        Case(
            {ANSWERED.format(200): "0+90x2400", ANSWERED.format(503): "0+10x2400"},
            {ANSWERED.format(200): "0+98x2400", ANSWERED.format(503): "0+2x2400"},
        )
    ],
    "LetheDeletionsPastDeadline": [gauge("open_deletions_past_deadline", 1, 0)],
    "LetheDeletionsNearDeadline": [gauge("open_deletions_near_deadline", 1, 0)],
    "LetheDeletionsOpenLong": [gauge("oldest_open_deletion_seconds", DAY + 1, DAY)],
    "LetheDeletionsFailed": [gauge("open_deletions_failed", 3, 0)],
    "LetheDeletionsWait": [
        Case({QUEUED: always(5), BATCHES: always(7)}, {QUEUED: always(5), BATCHES: "0+1x2400"}),
        Case({QUEUED: always(5)}, {QUEUED: always(0), BATCHES: always(7)}),
        # An unlearner that is killed repeatedly: every fourth scrape has no answer.
        Case(
            {QUEUED: "5 5 5 stale " * 15, BATCHES: "7 7 7 stale " * 15},
            {QUEUED: "0 0 0 stale " * 15, BATCHES: "7 7 7 stale " * 15},
        ),
        Case({QUEUED: "NaN 5 5 stale " * 15}, {QUEUED: "5 5 5 stale " * 15, BATCHES: "0+1x2400"}),
    ],
    "LetheDeletionsUnclaimed": [gauge("oldest_unclaimed_seconds", 61, 60)],
    "LetheRestartLoop": [
        # It does not answer while it is down.
        Case(
            {RESTARTS: "0x16 stale 1x2 stale 2x2 stale 3x20"},
            {RESTARTS: "0x10 stale 1x1000"},
            labels=(("instance", "one:8000"), ("process", "unlearner")),
        )
    ],
    "LetheDiskNearlyFull": [gauge("disk_free_bytes", 2**30 - 1, 2**30)],
    "LetheMemoryNearlyUsedUp": [
        Case(
            {FREE: always(99e6), USED: always(1e9)},
            {FREE: always(101e6), USED: always(1e9)},
            labels=(("instance", "one:8000"), ("process", "unlearner")),
        )
    ],
    "LetheSpanResidualLarge": [gauge("residuals_too_large", 1, 0)],
    "LetheResidualExceeded": [
        Case({EXCEEDED: "0x20 1x2400"}, {EXCEEDED: always(1)}, labels=(("residual", "span"),)),
    ],
    "LetheRepairNotConverged": [
        Case({of("repairs_not_converged_total")[0]: "0x20 1x2400"}, {of("repairs_not_converged_total")[0]: always(4)})
    ],
    "LetheDrillFailed": [gauge("drill_last_passed", 0, 1)],
    "LetheDrillCohortsUsedUp": [
        Case({COMPLETED: always(1), COHORTS: always(0)}, {COMPLETED: always(1), COHORTS: always(1)}),
        Case({COMPLETED: always(1), COHORTS: always(0)}, {COMPLETED: always(0), COHORTS: always(0)}),
    ],
    "LethePromiseNearlyUsed": [gauge("promise_used_share", 0.9, 0.89)],
    "LetheLedgerUnavailable": [gauge("ledger_failing_seconds", 301, 300)],
    "LetheLogUnsigned": [Case({SIZE: always(8), SIGNED: always(7)}, {SIZE: always(8), SIGNED: always(8)})],
    "LetheLogNotGrowing": [
        Case({ENDED: "0+1x2400", SIZE: always(8)}, {ENDED: "0+1x2400", SIZE: "0+3x2400"}),
        Case({ENDED: "0+1x2400", SIZE: always(8)}, {ENDED: always(5), SIZE: always(8)}),
    ],
    "LetheLogContradicted": [
        Case(
            {f"lethe_watch_consistent{WATCHER}": always(0)},
            {f"lethe_watch_consistent{WATCHER}": always(1)},
            labels=WATCHED,
        )
    ],
    "LetheLogUnwatched": [
        Case({LAST_GOOD: always(0)}, {LAST_GOOD: "0+60x2400"}, "2h", WATCHED),
        # There is no watcher.
        Case({UP: always(1)}, {LAST_GOOD: "0+60x2400"}, "2h"),
    ],
}


def asked(alert: str, case: Case, fires: bool) -> dict[str, Any]:
    """Return a promtool test."""
    labels = dict(case.labels)
    rule = BY_NAME[alert]
    expected = {
        "exp_labels": {"severity": rule["labels"]["severity"], **labels},
        "exp_annotations": {
            name: text.replace("{{ $labels.instance }}", labels.get("instance", ""))
            for name, text in rule["annotations"].items()
        },
    }
    series = case.fires if fires else case.quiet
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": case.at, "alertname": alert, "exp_alerts": [expected] if fires else []}],
    }


def promtool(tests: list[tuple[str, dict[str, Any]]], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run promtool on these tests, each with one alert; all alerts for each test would take half a minute."""
    files = []
    for number, (alert, test) in enumerate(tests):
        rule, file = folder / f"{alert}.rules.yml", folder / f"{number}.yml"
        rule.write_text(yaml.safe_dump({"groups": [{"name": "lethe", "rules": [BY_NAME[alert]]}]}))
        file.write_text(yaml.safe_dump({"rule_files": [rule.name], "evaluation_interval": "1m", "tests": [test]}))
        files.append(str(file))
    command = [str(find_program("promtool")), "test", "rules", *files]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_there_are_cases_of_every_alert() -> None:
    assert list(CASES) == [rule["alert"] for rule in ALERTS]


@pytest.mark.ci
@pytest.mark.needs("promtool")
@pytest.mark.parametrize("fires", [True, False], ids=["fires", "quiet"])
def test_every_alert_fires_when_it_must_and_only_then(fires: bool, tmp_path: Path) -> None:
    tests = [(alert, asked(alert, case, fires)) for alert, cases in CASES.items() for case in cases]
    ran = promtool(tests, tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.needs("promtool")
def test_prometheus_reads_the_rules_as_they_lie() -> None:
    subprocess.run([str(find_program("promtool")), "check", "rules", DOCKER / "prometheus" / "rules.yml"], check=True)


@pytest.mark.needs("promtool")
def test_promtool_notices_an_alert_that_should_not_have_fired(tmp_path: Path) -> None:
    [case] = CASES["LetheDeletionsFailed"]
    wrong = asked("LetheDeletionsFailed", Case(case.quiet, case.quiet), True)
    assert promtool([("LetheDeletionsFailed", wrong)], tmp_path).returncode == 1


def test_every_alert_has_a_severity_and_a_heading_that_says_what_to_do() -> None:
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning"), rule
        page, _, heading = rule["annotations"]["runbook_url"].partition("#")
        headings = [anchor(line) for line in (ROOT / page).read_text().splitlines() if line.startswith("## ")]
        assert heading in headings, rule
    assert len(headings) == len(ALERTS)
