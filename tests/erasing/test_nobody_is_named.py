"""No output of Lethe names the targets of a completed request: every route, by the route table, and every log line.

The one exception is the request's reference, for keys with audit:read. A new route is tested without being listed here.
One that needs a body, or a parameter of a new kind, fails until its input is added here.
"""

import html
import io
import json
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from urllib.parse import quote
from uuid import UUID

import httpx2
import pytest
import structlog
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry

from projector.forgetting.status import RepairProgress
from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.scopes import Scope
from service.log.export_pages import export_lines
from service.log.signed_checkpoints import LogSigner
from service.log.signing_keys import LogKeys
from service.observability.logging import configure_logging
from service.observability.metrics import UnlearningMetrics
from service.predictions.facts import Facts
from service.predictions.served_model import ModelInfo
from service.web.api.model_routes import AUDIT_ONLY
from tests.support.clients.signing_in import SAME_ORIGIN, sign_in, token_in
from tests.support.service.api_harness import INFO, Api, serving
from tests.support.service.db_harness import made

#: The deleted ids; no other text contains them.
SOMEBODY, SOMEBODY_ELSE = "user/38", "ålesund 39"
REFERENCE = "DSR-of-somebody-38"
#: Path parameter -> values, including a deleted node, which the answer must not repeat.
PARAMETERS = {
    "node": ("5", SOMEBODY),
    "index": ("0", "1"),
    "name": ("dashboard.css", "swagger-ui.css"),
    "model": ("tiny", SOMEBODY_ELSE),
    "version": ("4", SOMEBODY_ELSE),
}
#: Route -> its query.
QUERIES = {
    "/log/consistency": {"from": "1"},
    "/dashboard/log/consistency": {"from": "1", "to": "2"},
}
INFERENCE = {"inputs": [{"name": "node", "datatype": "BYTES", "shape": [1], "data": ["5"]}]}
#: Bodies of routes that take one, as JSON or as a form.
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/predict"): {"nodes": ["5"]},
    ("POST", "/predict-new"): {"nodes": [{"features": {}, "neighbours": ["5"]}]},
    ("POST", "/v2/models/{model}/infer"): INFERENCE,
    ("POST", "/v2/models/{model}/versions/{version}/infer"): INFERENCE,
    ("POST", "/deletions"): {"kind": "node", "nodes": ["7"]},
    ("POST", "/deletions/search"): {"status": "completed"},
    ("POST", "/deletions/{request_id}/handle"): {"reason": "None of these."},
    ("POST", "/deletions/{request_id}/hold"): {"reason": "None of these."},
    ("POST", "/deletions/{request_id}/extend"): {"due_at": "2030-01-01T00:00:00Z", "reason": "None of these."},
    ("POST", "/log/checks"): {"size": 2, "root": "a" * 64, "against": {"size": 1, "root": "a" * 64}},
    ("POST", "/dashboard/login"): {"key": "lethe_00000000_wrong"},
    ("POST", "/dashboard/find"): {"nodes": SOMEBODY, "reference": ""},
}
ELSEWHERE = ("192.0.2.7", 4711)
#: Part of the objective, not a figure of the training data.
LAMBDA = INFO.facts.model.regularization
VIEWS = "SELECT viewname FROM pg_views WHERE schemaname = 'public'"


def spellings(*texts: str) -> set[str]:
    """Return the spellings of a text in JSON, HTML, a URL and plain."""
    written = set()
    for text in texts:
        written |= {text, json.dumps(text)[1:-1], html.escape(text), quote(text), quote(text, safe="")}
    return written


IDS = spellings(SOMEBODY, SOMEBODY_ELSE)


def names_in(text: str, *, may_show_reference: bool = False) -> set[str]:
    """Return the forbidden names in a text."""
    return {one for one in IDS | (set() if may_show_reference else spellings(REFERENCE)) if one in text}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Yield everything that is logged, at the lowest level."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging("json", "debug", stream, process="api-0")
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@pytest.fixture
async def api(database_url: str, tmp_path: Path, log: io.StringIO) -> AsyncIterator[Api]:
    async with serving(database_url, tmp_path, log_level="debug") as api:
        yield api


@pytest.fixture
async def completed(api: Api, tmp_path: Path) -> list[UUID]:
    """Complete deletions of a node, an edge and features, requested with a reference; the log is signed."""
    owner = await api.client(Scope.DELETIONS_WRITE)
    done = []
    for kind, subjects in (
        (RequestKind.FEATURES, [SOMEBODY]),
        (RequestKind.EDGE, [(SOMEBODY, SOMEBODY_ELSE)]),
        (RequestKind.NODE, [SOMEBODY, SOMEBODY_ELSE]),
    ):
        named = {"edges": subjects} if kind is RequestKind.EDGE else {"nodes": subjects}
        body = {"kind": kind.value, "reference": REFERENCE, **named}
        answer = await owner.post("/deletions", json=body, headers={"Idempotency-Key": f"key-{kind}"})
        assert answer.status_code == 202, answer.text
        done.append(UUID(answer.json()["id"]))
        await api.complete(done[-1])
        await api.forget(subjects, done[-1], kind)
    await LogSigner(api.engine, LogKeys.open(tmp_path / "keys"), UnlearningMetrics(CollectorRegistry())).sign_pending()
    return done


def routes(api: Api) -> list[tuple[str, APIRoute]]:
    """Return every route with each of its methods; anything but a plain route would go untested here."""
    found = []
    for route in _flat(api.app.routes):
        assert route.methods is not None
        found += [(method, route) for method in route.methods]
    assert len(found) > 30
    return found


def _flat(within: Iterable[object]) -> Iterator[APIRoute]:
    for route in within:
        if (router := getattr(route, "original_router", None)) is not None:
            yield from _flat(router.routes)
        else:
            assert isinstance(route, APIRoute), f"{route} is no route that can be asked in general"
            yield route


def addresses(route: APIRoute, requests: list[UUID]) -> list[str]:
    """Return the URLs of a route: each value of its parameters with choices, one by one."""
    paths = [route.path]
    for parameter in route.dependant.path_params:
        values = [str(one) for one in requests] if parameter.name == "request_id" else PARAMETERS[parameter.name]
        names = (f"{{{parameter.name}}}", f"{{{parameter.name}:path}}")
        paths = [
            path.replace(names[0], quote(value)).replace(names[1], quote(value)) for path in paths for value in values
        ]
    needed = QUERIES.get(route.path, {})
    queries = [needed]
    for parameter in route.dependant.query_params:
        choices = _choices(parameter.field_info.annotation)
        queries += [{**needed, parameter.alias: str(choice)} for choice in choices]
    return [str(httpx2.URL(path, params=query)) if query else path for path in paths for query in queries]


def _choices(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(annotation) if isinstance(annotation, type) and issubclass(annotation, Enum) else ()


async def asked(client: httpx2.AsyncClient, method: str, route: APIRoute, url: str, token: str) -> httpx2.Response:
    if method == "GET":
        return await client.get(url)
    body = BODIES.get((method, route.path))
    if route.path.startswith("/dashboard"):
        return await client.request(method, url, data={**(body or {}), "form_token": token}, headers=SAME_ORIGIN)
    if body is None:
        return await client.request(method, url)
    return await client.request(method, url, json=body)


@pytest.mark.ci
async def test_no_answer_names_anybody_who_was_deleted(api: Api, completed: list[UUID], log: io.StringIO) -> None:
    _, auditors_key = await api.key(
        Scope.AUDIT_READ, Scope.DELETIONS_READ, Scope.PREDICTIONS_READ, Scope.PREDICTIONS_ALL
    )
    signed_in = await api.client_with(None)
    assert (await sign_in(signed_in, auditors_key)).status_code == 303
    token = token_in_session((await signed_in.get("/dashboard/find")).text)
    callers = {
        "nobody": (await api.client_with(None, ("192.0.2.7", 4711)), False),
        "predictions:read": (await api.client(Scope.PREDICTIONS_READ), False),
        "all but audit:read": (
            await api.client(Scope.DELETIONS_READ, Scope.DELETIONS_WRITE, Scope.PREDICTIONS_READ),
            False,
        ),
        "audit:read": (await api.client_with(auditors_key), True),
        "the dashboard": (signed_in, True),
    }
    answered: set[tuple[str, str]] = set()
    # Signing out comes last.
    for method, route in sorted(routes(api), key=lambda one: one[1].path.endswith("logout")):
        for url in addresses(route, completed):
            for name, (client, may_show_reference) in callers.items():
                answer = await asked(client, method, route, url, token)
                assert answer.status_code != 500, (name, method, url)
                said = f"{answer.headers}{answer.text}"
                assert names_in(said, may_show_reference=may_show_reference) == set(), (name, method, url)
                if answer.status_code < 400:
                    answered.add((method, route.path))
    # Each has really answered, except these: a completed request cannot be cancelled, retried, handled, extended, held
    # or released; no root and no key is guessed; nothing was added or corrected, and no caller may, nor predict nodes
    # outside the graph; the model has no canaries; and without an issuer of tokens, nobody signs in there.
    assert {(method, route.path) for method, route in routes(api)} - answered == {
        ("DELETE", "/deletions/{request_id}"),
        ("POST", "/deletions/{request_id}/retry"),
        ("POST", "/deletions/{request_id}/handle"),
        ("POST", "/deletions/{request_id}/extend"),
        ("POST", "/deletions/{request_id}/hold"),
        ("POST", "/deletions/{request_id}/release"),
        ("POST", "/log/checks"),
        ("POST", "/dashboard/login"),
        ("GET", "/dashboard/sign-on"),
        ("GET", "/dashboard/sign-on/callback"),
        ("POST", "/drills"),
        ("POST", "/additions"),
        ("GET", "/additions/{request_id}"),
        ("DELETE", "/additions/{request_id}"),
        ("POST", "/corrections"),
        ("POST", "/predict-new"),
        ("GET", "/corrections/{request_id}"),
        ("DELETE", "/corrections/{request_id}"),
    }
    written = log.getvalue() + api.lines.getvalue()
    assert written.count("\n") > 100
    assert names_in(written) == set()
    # The log names the route of each.
    assert "unmatched" not in written


def token_in_session(page: str) -> str:
    return token_in(page)


@pytest.mark.ci
async def test_a_key_that_may_only_predict_sees_no_figure_of_weights_or_graph(api: Api, completed: list[UUID]) -> None:
    """With such figures and the graph, one could test in a Lethe of one's own which node was deleted."""
    served = replace(INFO.facts.served, edges=918_273, rank=827_364)
    served = replace(served, distance_bound=0.518273645, distance_bound_relative=0.02182736)
    served = replace(served, training_nodes=773_645, score_validation=0.8318273645, score_test=0.8218273645)
    trained = replace(INFO.facts.model, condition_number=12.51827364509)
    trained = replace(trained, accuracy={"train": 0.9518273, "val": 0.8418273, "test": 0.8318273})
    exact = replace(
        INFO,
        facts=Facts(replace(trained, regression={"r_squared_test": 0.71827364}), served),
        span_residual=3.182736e-15,
        repair_progress=RepairProgress(iterations=645_091, products=736_450, bound_relative=0.0041827),
        weights_sha256="5e18" * 16,
    )

    async def described() -> ModelInfo:
        return exact

    api.services = api.app.state.services = replace(api.services, model_info=described)
    auditor = await api.client(Scope.PREDICTIONS_READ, Scope.AUDIT_READ)
    audited = {name: value for name, value in (await auditor.get("/model")).json().items() if name in AUDIT_ONLY}
    figures = [value for each in audited.values() for value in (each.values() if isinstance(each, dict) else [each])]
    secrets = [json.dumps(figure).strip('"') for figure in (*figures, made().weights_sha256)]
    assert len(set(secrets)) == 18
    _, key = await api.key(Scope.PREDICTIONS_READ)
    answered: set[str] = set()
    for method, route in routes(api):
        for url in addresses(route, completed):
            for client in (await api.client_with(key), await api.client_with(key, ELSEWHERE)):
                answer = await asked(client, method, route, url, "")
                if answer.is_success:
                    answered.add(route.path)
                    assert [one for one in secrets if one in f"{answer.headers}{answer.text}"] == [], url
                    if "json" in answer.headers["content-type"] and route.path != "/openapi.json":
                        shown = [json.loads(line) for line in answer.text.splitlines()]
                        assert [one for one in numbers(shown) if one not in (round(one, 2), LAMBDA)] == [], url
    assert answered == {
        *("/predict/{node:path}", "/predict", "/model", "/metrics", "/openapi.json", "/docs"),
        *("/healthz", "/readyz", "/readyz/predictions"),
        *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/{model}", "/v2/models/{model}/versions/{version}"),
        *("/v2/models/{model}/ready", "/v2/models/{model}/versions/{version}/ready"),
        *("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer"),
        *("/docs/start.js", "/docs/assets/{name:path}", "/dashboard/login", "/dashboard/static/{name:path}"),
        "/dashboard/verify",
    }


def numbers(answer: Any) -> Iterator[float]:
    """Yield every number in a JSON answer."""
    if isinstance(answer, dict | list):
        for each in answer.values() if isinstance(answer, dict) else answer:
            yield from numbers(each)
    elif isinstance(answer, float | int):
        yield answer


async def test_neither_exports_nor_views_name_anybody(api: Api, completed: list[UUID]) -> None:
    lines = [json.dumps(line, ensure_ascii=False) async for page in export_lines(api.engine) for line in page]
    assert len(lines) >= 2 * len(completed)
    assert names_in("\n".join(lines)) == set()
    async with transaction(api.engine) as connection:
        views = (await connection.exec_driver_sql(VIEWS)).scalars().all()
        rows = {
            view: (await connection.exec_driver_sql(f"SELECT row_to_json(v)::text FROM {view} v")).scalars().all()
            for view in views
        }
    assert {view for view, found in rows.items() if found} >= {"audit_summary", "audit_series", "audit_export"}
    assert {view for view, found in rows.items() if names_in("\n".join(found))} == set()
