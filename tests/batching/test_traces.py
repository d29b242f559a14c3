"""Traces, as a collector receives them: from the call to the last step, and never an id."""

import io
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import structlog

from benchmarks.performance.service.collector import Collector, collecting
from service import failure_points
from service.errors import ConfigurationError
from service.failure_points import FailurePoint
from service.observability import tracing
from service.observability.logging import configure_logging
from service.observability.tracing import stepped, traced
from service.settings import Settings
from tests.support.service.bodies import features_body, node_body
from tests.support.service.db_harness import until
from tests.support.service.running import Lethe, running

SOMEBODY = "PERSON-4711"
ROW = [0.5] * 12
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
#: The points of a batch in which something joined or went, in order.
STEPS = [
    *(FailurePoint.BATCHED, FailurePoint.COMPUTED, FailurePoint.WRITTEN, FailurePoint.COMMITTING),
    *(FailurePoint.COMMITTED, FailurePoint.SWAPPED, FailurePoint.SHOWN, FailurePoint.APPLYING, FailurePoint.APPLIED),
    *(FailurePoint.COEFFICIENTS_WRITTEN, FailurePoint.GROWING, FailurePoint.ERASED, FailurePoint.MEASURED),
    *(FailurePoint.SECURED, FailurePoint.COMPLETING, FailurePoint.COMPLETED),
    *(FailurePoint.KEYS_DESTROYED, FailurePoint.ACKNOWLEDGED),
]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that the environment names. The framework is asked for telemetry of its own, too."""
    with collecting() as collector:
        for name, value in (collector.environment | {"FASTAPI_OTEL_AUTO_CONFIGURE": "true"}).items():
            monkeypatch.setenv(name, value)
        # On a busy machine.
        monkeypatch.setattr(tracing, "_LAST_EXPORT_S", 60.0)
        yield collector


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream, root = io.StringIO(), logging.getLogger()
    handlers = root.handlers[:]
    configure_logging("json", "info", stream, process="api-0")
    yield stream
    root.handlers[:] = handlers
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


async def accepted(lethe: Lethe, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    response = await lethe.client.post(path, json=body, headers=headers)
    assert response.status_code == 202, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.ci
async def test_a_trace_leads_from_the_call_to_the_last_step_and_names_nobody(
    collector: Collector, settings: Settings, together: Callable[[int], None], log: io.StringIO
) -> None:
    with traced(os.environ, "lethe-0"):
        async with running(settings) as lethe:
            await until(lethe.is_ready)
            addition = await accepted(lethe, "/additions", {"nodes": [{"id": SOMEBODY, "features": ROW}]})
            await lethe.completed(addition)
            together(3)
            asked = [
                await accepted(lethe, "/deletions", node_body("7", reference=SOMEBODY), traceparent=CALLER),
                await accepted(lethe, "/deletions", features_body(SOMEBODY), traceparent=f"00-{SOMEBODY}"),
                await accepted(lethe, "/deletions", node_body("9")),
            ]
            for request in asked:
                await lethe.completed(request)
            refused = await lethe.client.post("/deletions", json=node_body(f"no {SOMEBODY}"))
            assert refused.status_code == 404
            await lethe.client.get(f"/predict/{SOMEBODY}?who={SOMEBODY}")
            assert lethe.failures == []

    first, second, third = (request["id"] for request in asked)
    calls = {span.attributes.get("lethe.request"): span for span in collector.named("POST /deletions")}
    assert calls.keys() == {first, second, third, None}
    assert [calls[one].attributes["http.response.status_code"] for one in (first, None)] == ["202", "404"]
    # The caller's trace is continued, unless its header is none.
    assert (calls[first].trace, calls[first].parent) == tuple(CALLER.split("-")[1:3])
    assert calls[second].parent == ""
    assert len({span.trace for span in calls.values()}) == 4
    (addition_call,) = collector.named("POST /additions")
    assert addition_call.attributes["lethe.request"] == addition["id"]

    first_batch, batch = collector.named("batch")
    assert (first_batch.trace, first_batch.parent) == (addition_call.trace, addition_call.span)
    # One trace has the whole batch, and the batch links to all.
    assert (batch.trace, batch.parent) == (calls[first].trace, calls[first].span)
    assert batch.links == tuple((calls[one].trace, calls[one].span) for one in (first, second, third))
    others = collector.named("batch of several")
    assert {(span.trace, span.parent, span.links) for span in others} == {
        (calls[one].trace, calls[one].span, ((batch.trace, batch.span),)) for one in (second, third)
    }
    steps = sorted((span for span in collector.spans if span.parent == batch.span), key=lambda span: span.end)
    # The keys may also have been destroyed beside the batch.
    names = [step.name for step in steps if step.name != FailurePoint.KEYS_EMPTIED.value]
    assert names == [point.value for point in STEPS]
    assert all(one.end == other.start for one, other in pairwise(steps))
    relayed = [span for span in collector.named(FailurePoint.RELAYED.value) if span.trace == batch.trace]
    assert [span.parent for span in relayed] == [calls[first].span]

    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    done = [line for line in lines if line["message"] == "version.completed"]
    assert [line["trace_id"] for line in done] == [addition_call.trace, batch.trace]
    assert [line["span_id"] for line in done] == [first_batch.span, batch.span]
    assert not any("trace_id" in line for line in lines if line["message"] == "unlearner.serving")
    # Nor has the framework exported anything.
    assert {span.name.partition(" ")[2] for span in collector.spans if span.attributes.get("http.route")} == {
        "/additions",
        "/deletions",
    }
    assert not any(SOMEBODY in span.text for span in collector.spans)
    assert SOMEBODY not in log.getvalue()


async def test_of_an_error_a_span_has_the_type_alone(collector: Collector) -> None:
    async def fails() -> None:
        failure_points.reached(FailurePoint.BATCHED)
        raise ValueError(SOMEBODY)

    with traced(os.environ, "unlearner"):
        with pytest.raises(ValueError, match=SOMEBODY):
            await stepped("batch", fails(), [CALLER])
        # An entry of the stream may hold anything.
        await stepped("batch", until(_yes), ["no", f"00-{'0' * 32}-{'0' * 16}-01", SOMEBODY * 1000])
    failed, other = collector.named("batch")
    assert (failed.failed, failed.attributes["error.type"], failed.trace) == (True, "ValueError", CALLER.split("-")[1])
    assert (other.failed, other.parent, other.links) == (False, "", ())
    assert [span.parent for span in collector.named("3 batched")] == [failed.span]
    assert not any(SOMEBODY in span.text for span in collector.spans)


async def _yes() -> bool:
    return True


@pytest.mark.ci
@pytest.mark.parametrize(
    ("variables", "services"),
    [
        ({}, {"lethe"}),
        ({"OTEL_SERVICE_NAME": "forgetting", "OTEL_TRACES_EXPORTER": "otlp"}, {"forgetting"}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=named"}, {"named"}),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, set()),
        ({"OTEL_TRACES_EXPORTER": "none"}, set()),
        ({"OTEL_SDK_DISABLED": "true"}, set()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, set()),
    ],
)
def test_the_standard_variables_decide(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], services: set[str]
) -> None:
    for name, value in (variables | {"OTEL_EXPORTER_OTLP_HEADERS": "x-token=abc"}).items():
        monkeypatch.setenv(name, value)
    with traced(os.environ, "api-0"), tracing.request("POST /deletions", [], {}):
        pass
    assert {span.attributes["service.name"] for span in collector.spans} == services
    if services:
        assert collector.headers["x-token"] == "abc"
    assert not tracing.is_on()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "asks for zipkin"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "asks for grpc"),
    ],
)
def test_what_lethe_lacks_is_refused(variables: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said), traced(variables, "api-0"):
        pass


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigurationError) as refused, traced({"OTEL_TRACES_EXPORTER": "otlp"}, "api-0"):
        pass
    assert "the extra `traces`" in refused.value.remedy
    # Not asked for, nothing is missing.
    with traced({}, "api-0"):
        assert tracing.traceparent() is None


def test_a_collector_that_does_not_answer_delays_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(tracing, "_LAST_EXPORT_S", 0.01)
        with traced(os.environ, "api-0"), tracing.request("POST /deletions", [CALLER], {}):
            assert tracing.trace_id() == CALLER.split("-")[1]
        assert any(thread.name == "last export" for thread in threading.enumerate())
