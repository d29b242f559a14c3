"""Alerts and panels are valid PromQL, and use existing metrics and labels."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from service.cli.audit_watch import Seen, WatchMetrics
from service.log.checkpoints import Checkpoint
from service.observability.metrics import IntakeMetrics, UnlearningMetrics, new_registry
from service.web.middleware import HttpMetrics
from tests.support.documents.alerts import ALERTS, DOCKER, RULES

DASHBOARDS = {path.name: json.loads(path.read_text()) for path in (DOCKER / "grafana" / "dashboards").glob("*.json")}
#: Expression -> its location.
EXPRESSIONS = {rule["expr"]: rule["alert"] for rule in ALERTS} | {
    target["expr"]: f"{name}: {panel['title']}"
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    for target in panel["targets"]
    if "expr" in target
}
#: Prometheus' own metrics of its targets.
PROMETHEUS = {"up": {"job", "instance"}}
#: Suffix of a sample -> its labels besides those of the metric.
SAMPLES = {"": set(), "_total": set(), "_bucket": {"le"}, "_sum": set(), "_count": set()}


class Selectors(list[promql_parser.VectorSelector]):
    """All selectors within an expression."""

    def __init__(self, expression: str) -> None:
        super().__init__()

        def visit(node: promql_parser.Expr) -> bool:
            if isinstance(node, promql_parser.MatrixSelector):
                self.append(node.vector_selector)
            elif isinstance(node, promql_parser.VectorSelector):
                self.append(node)
            return True

        promql_parser.walk(promql_parser.parse(expression), visit)


def known_samples(folder: Path) -> dict[str, set[str]]:
    """Return every sample of the service or a watcher, with its labels."""
    registry = CollectorRegistry(auto_describe=True)
    owners = (HttpMetrics(registry), IntakeMetrics(registry), UnlearningMetrics(registry))
    known = dict(PROMETHEUS)
    known |= {sample.name: set(sample.labels) for family in new_registry().collect() for sample in family.samples}
    held = [value for owner in owners for value in vars(owner).values()]
    for metric in (each for value in held for each in (value.values() if isinstance(value, dict) else (value,))):
        if isinstance(metric, MetricWrapperBase):
            [family] = metric.describe()
            known |= {family.name + suffix: {*metric._labelnames, *more} for suffix, more in SAMPLES.items()}
    watching = WatchMetrics(folder / "watch.prom")
    watching.good(Seen(Checkpoint("lethe/0123", 3, bytes(32)), "note"))
    for family in text_string_to_metric_families((folder / "watch.prom").read_text()):
        known |= {sample.name: set(sample.labels) for sample in family.samples}
    return known


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=EXPRESSIONS.values())
def test_every_expression_is_valid_and_asks_for_what_exists(expression: str, tmp_path: Path) -> None:
    known = known_samples(tmp_path)
    selectors = Selectors(expression)
    assert selectors
    for selector in selectors:
        assert selector.name in known
        asked = {matcher.name for matcher in selector.matchers.matchers}
        assert asked <= known[selector.name] | PROMETHEUS["up"] | {"process"}


@pytest.mark.parametrize(
    "wrong",
    ["sum(rate(lethe_batches_total[5m])", "rate(lethe_batches_total)", "lethe_batches_total >", "increas(x[5m])"],
)
def test_what_is_no_promql_is_found(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        promql_parser.parse(wrong)


def test_rules_have_the_form_that_prometheus_reads() -> None:
    assert RULES.keys() == {"groups"}
    assert all(group.keys() <= {"name", "interval", "rules"} for group in RULES["groups"])
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)
    for rule in ALERTS:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}, rule
        assert rule["annotations"]["summary"].endswith("."), rule
        if "for" in rule:
            assert promql_parser.parse_duration(rule["for"]).total_seconds() > 0


def test_there_is_an_alert_for_each_way_in_which_the_evidence_can_fail() -> None:
    asked = {selector.name for rule in ALERTS for selector in Selectors(rule["expr"])}
    assert asked >= {
        "lethe_log_size",
        "lethe_log_signed_size",
        "lethe_watch_consistent",
        "lethe_watch_last_good_timestamp_seconds",
        "lethe_residual_exceeded_total",
    }


def panels_of(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


def test_every_panel_asks_for_something() -> None:
    for name, dashboard in DASHBOARDS.items():
        for panel in panels_of(dashboard):
            assert all("expr" in target or "rawSql" in target for target in panel["targets"]), (name, panel["title"])
