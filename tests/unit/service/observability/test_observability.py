"""Log lines have one form and name nobody; metrics carry no ids."""

import asyncio
import errno
import gc
import io
import json
import logging
import math
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import structlog
from prometheus_client import generate_latest
from structlog.typing import EventDict

from projector.forgetting.status import RepairStatus
from service.domain.kinds import RequestKind
from service.domain.states import RequestStatus
from service.domain.versions import Drift
from service.errors import UnknownNodes
from service.observability.logging import AccessLog, Answer, LogFormat, OutageThrottle, configure_logging
from service.observability.metrics import IntakeMetrics, UnlearningMetrics, new_registry
from tests.support.service.records import BATCH

SOMEBODY = "alice-4711"


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, object]]]]:
    """Logging configured as JSON; a call returns the lines written so far."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging("json", "info", stream, process="api-1")
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def test_lines_of_the_service_and_of_its_libraries_have_one_form(lines: Callable[[], list[dict[str, object]]]) -> None:
    structlog.get_logger("service.unlearner").info("batch.completed", nodes=5)
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7, extra={"color_message": "x"})

    ours, theirs = lines()

    assert ours.keys() - {"nodes"} == theirs.keys() == {"timestamp", "level", "logger", "message", "process"}
    assert ours["process"] == theirs["process"] == "api-1"
    assert (ours["message"], ours["nodes"]) == ("batch.completed", 5)
    assert (theirs["message"], theirs["logger"]) == ("Started server process [7]", "uvicorn.error")


def test_an_id_in_an_exception_never_reaches_the_log(lines: Callable[[], list[dict[str, object]]]) -> None:
    def fail() -> None:
        try:
            raise ExceptionGroup(SOMEBODY, [KeyError(SOMEBODY), UnknownNodes(SOMEBODY, "Ask for others.")])
        except ExceptionGroup as group:
            raise ValueError(SOMEBODY) from group

    for logger in (structlog.get_logger("service.web.api"), logging.getLogger("uvicorn.error")):
        try:
            fail()
        except ValueError:
            logger.exception("failed")

    assert SOMEBODY not in json.dumps(lines())
    for line in lines():
        written = str(line["exception"])
        assert all(name in written for name in ("ValueError", "ExceptionGroup", "KeyError", "UnknownNodes", "in fail"))


def test_an_id_in_a_lost_task_never_reaches_the_log(lines: Callable[[], list[dict[str, object]]]) -> None:
    async def fail() -> None:
        raise KeyError(SOMEBODY)

    async def lose_a_task() -> None:
        await asyncio.wait([asyncio.ensure_future(fail())])

    asyncio.run(lose_a_task())
    gc.collect()

    (line,) = lines()
    assert line["message"] == "Task exception was never retrieved"
    assert SOMEBODY not in json.dumps(line)


def test_of_a_traceback_that_a_library_wrote_itself_the_type_is_kept(
    lines: Callable[[], list[dict[str, object]]],
) -> None:
    try:
        raise KeyError(SOMEBODY)
    except KeyError:
        logging.getLogger("uvicorn.error").error(traceback.format_exc())

    (line,) = lines()
    assert line["message"] == "Failed with KeyError."


def test_values_under_personal_names_are_withheld_and_counts_are_not(
    lines: Callable[[], list[dict[str, object]]],
) -> None:
    structlog.get_logger("service.web.api").warning("refused", nodes=[SOMEBODY], reference=SOMEBODY, edges=3)

    (line,) = lines()
    assert (line["nodes"], line["reference"], line["edges"]) == ("[withheld]", "[withheld]", 3)


def test_the_access_log_knows_route_templates_only(lines: Callable[[], list[dict[str, object]]]) -> None:
    logging.getLogger("uvicorn.access").info("GET /predict/%s", SOMEBODY)
    assert lines() == []


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_an_answer_is_logged_in_the_form_of_all_other_lines(log_format: LogFormat) -> None:
    stream = io.StringIO()
    log = AccessLog(log_format, "info", stream, process="api-1")
    log.answered(Answer(request_id="ab", method="GET", route="/predict/{node}", status=200, seconds=0.00123))
    log.answered(Answer(request_id="ac", method="GET", route="/healthz", status=200, seconds=0.001))
    log.answered(Answer(request_id="ad", method="GET", route="/readyz", status=503, seconds=0.001))
    AccessLog(log_format, "warning", stream, process="api-1").answered(Answer("", "", "", 200, 0.0))

    first, second = stream.getvalue().splitlines()
    assert all(part in first for part in ("http.answered", "lethe.access", "/predict/{node}", "200", "1.23", "ab"))
    assert "/readyz" in second
    if log_format == "json":
        assert json.loads(first).keys() >= {"timestamp", "level", "logger", "message"}
        assert json.loads(first)["process"] == "api-1"
    else:
        assert "process=api-1" in first


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_log_that_cannot_be_written_keeps_nobody_from_their_answer(log_format: LogFormat) -> None:
    class FullDisk(io.StringIO):
        is_full = True

        def write(self, text: str) -> int:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(text)

    stream = FullDisk()
    log = AccessLog(log_format, "info", stream, process="api-1")
    for number in range(4):
        stream.is_full = number < 2
        log.answered(Answer(request_id=f"r{number}", method="GET", route="/model", status=200, seconds=0.1))
    first, second = stream.getvalue().splitlines()
    assert "lines_lost_before" in first
    assert "2" in first.partition("lines_lost_before")[2]
    assert "lines_lost" not in second


def test_an_outage_is_logged_at_once_and_then_once_a_minute_with_the_number_of_lines_left_out() -> None:
    now = 0.0
    throttle = OutageThrottle(lambda: now)

    def logged(event: str, **values: object) -> EventDict | None:
        try:
            return throttle(None, "warning", {"event": event, **values})
        except structlog.DropEvent:
            return None

    away = {"reason": "The database does not answer (ConnectionRefusedError)."}
    assert logged("outage", activity="relay", **away) == {"event": "outage", "activity": "relay", **away}
    # In any activity, wherever it is logged.
    now = 1.0
    assert [logged("outage", activity="log", **away), logged("lease.renewal_failed", **away)] == [None, None]
    now = 59.0
    assert [logged("outage", activity="log", **away), logged("limits.local", **away)] == [None, None]
    assert logged("outage", reason="Redis is away.") == {"event": "outage", "reason": "Redis is away."}
    now = 60.0
    assert logged("outage", **away) == {"event": "outage", **away, "lines_like_this": 4}
    assert logged("outage", **away) is None
    now = 900.0
    assert logged("outage", reason="Redis is away.") == {"event": "outage", "reason": "Redis is away."}
    for _ in range(2):
        assert logged("unlearner.failed") == {"event": "unlearner.failed"}
        assert logged("batch.failed", reason="x") == {"event": "batch.failed", "reason": "x"}


def test_what_is_not_known_of_a_model_is_no_figure() -> None:
    registry = new_registry()
    metrics = UnlearningMetrics(registry)
    gauges = ["model_version", "model_live_nodes", "model_edges", "model_training_nodes"]
    gauges += ["residuals_too_large", "drill_cohorts_remaining"]
    of_model = [f"lethe_{name}" for name in gauges]
    waiting = ["lethe_open_deletions_failed", "lethe_disk_free_bytes", "lethe_memory_available_bytes"]
    waiting += ["lethe_queued_nodes", "lethe_oldest_unclaimed_seconds", "lethe_repair_pending"]
    waiting += [
        f"lethe_webhook_{name}" for name in ("deliveries_waiting", "oldest_waiting_seconds", "deliveries_given_up")
    ]

    def known(names: list[str]) -> list[str]:
        return [name for name in names if not math.isnan(registry.get_sample_value(name) or 0.0)]

    assert known([*of_model, *waiting, "lethe_drill_last_completed_timestamp_seconds"]) == []
    drift = Drift(training_nodes=3, score_validation=0.5, score_test=None)
    metrics.model(version=3, live_nodes=5, edges=4, drift=drift, residuals_too_large=False)
    metrics.drill_cohorts.set(1)
    assert known(of_model) == of_model
    scores = {
        nodes: registry.get_sample_value("lethe_model_score", {"nodes": nodes}) for nodes in ("validation", "test")
    }
    assert (scores["validation"], math.isnan(scores["test"] or 0.0)) == (0.5, True)
    metrics.no_model()
    assert known(of_model) == []
    assert registry.get_sample_value("lethe_model_score", {"nodes": "validation"}) is None


def test_a_batch_shows_in_the_metrics() -> None:
    registry = new_registry()
    metrics = UnlearningMetrics(registry)
    batch = replace(
        BATCH,
        rank_after=918_273,
        weights_sha256_after="1" * 64,
        weight_change=0.0182736,
        coefficient_residual=1.2734e-15,
        durations_ms={"project": 2.0, "repair": 410.0},
        span_residual=3.2736e-15,
        distance_bound_after_relative=4.3647e-11,
        repair=RepairStatus.CONVERGED,
    )

    IntakeMetrics(registry).received(RequestKind.NODE)
    metrics.completed(batch)
    metrics.reached(RequestStatus.APPLIED, 0.02)
    metrics.reached(RequestStatus.COMPLETED, 0.2)
    metrics.model(version=1, live_nodes=97, edges=90, drift=Drift(), residuals_too_large=True)
    metrics.repaired(RepairStatus.NOT_CONVERGED, seconds=None)
    metrics.pending_repairs.set(4)
    metrics.webhooks_waiting.set(3)
    metrics.webhooks_oldest.set(71.5)
    metrics.webhooks_given_up.set(2)

    shown = generate_latest(registry).decode()
    for expected in (
        'lethe_deletions_received_total{kind="node"} 1.0',
        'lethe_batches_total{method="downdate"} 1.0',
        'lethe_batch_step_seconds_sum{step="project"} 0.002',
        'lethe_deletions_ended_total{status="completed"} 1.0',
        "lethe_model_live_nodes 97.0",
        "lethe_residuals_too_large 1.0",
        'lethe_repairs_total{status="converged"} 1.0',
        'lethe_repairs_total{status="not_converged"} 1.0',
        "lethe_repairs_not_converged_total 1.0",
        "lethe_repair_seconds_sum 0.41",
        "lethe_repair_pending 4.0",
        "lethe_webhook_deliveries_waiting 3.0",
        "lethe_webhook_oldest_waiting_seconds 71.5",
        "lethe_webhook_deliveries_given_up 2.0",
        "process_resident_memory_bytes",
    ):
        assert expected in shown
    for exact in ("918273", "0.0182736", "1.2734e-15", "3.2736e-15", "4.3647e-11", "1" * 64):
        assert exact not in shown
    assert 'status="applied"} 1.0' not in shown.split("lethe_deletions_ended_total")[-1].split("#")[0]
