"""Every route of the application, read from the application itself, and invalid calls of it."""

import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from starlette.routing import BaseRoute

from service.observability.logging import AccessLog
from service.web.api.application import build
from service.web.dashboard.installation import install
from service.web.dashboard.words import CHOICES, DAYS, LIMITS, ORDER, QUESTIONS
from tests.support.inputs.documents import STRANGE
from tests.support.inputs.variations import UNKNOWN, VALUES, Sweep, misspellings

#: Labels of the filters in the list of requests.
_LABELS = {one.name: one.label for one in (*CHOICES, *QUESTIONS, ORDER, *LIMITS)} | dict(DAYS)
#: Placeholder for a key with all scopes.
KEY = "Bearer KEY"
#: Headers that every route reads without declaring them, with valid values.
HEADERS = {"Authorization": KEY, "Host": "localhost"}


@dataclass(frozen=True)
class Call:
    """A request as sent, byte for byte."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    #: If the call must be refused, the refusal must name one of these.
    wrong: tuple[str, ...] = ()
    #: Whether it may also be accepted, if a valid reading exists.
    may_be_taken: bool = False

    @property
    def target(self) -> str:
        """Path and query."""
        query = urlencode(self.query, quote_via=quote)
        return f"{self.path}?{query}" if query else self.path

    def __str__(self) -> str:
        """Return the command that repeats it."""
        headers = "".join(f" -H {f'{name}: {value}'!r}" for name, value in self.headers)
        body = "" if self.body is None else f" --data-binary {self.body.decode('utf-8', 'backslashreplace')[:300]!r}"
        return f"curl -X {self.method} '{self.target}'{headers}{body}"


@dataclass(frozen=True)
class Route:
    """A route and its inputs."""

    method: str
    path: str
    query: tuple[str, ...]
    headers: tuple[str, ...]
    #: Path parameters, each with its type.
    parts: tuple[tuple[str, Any], ...]
    #: Valid bodies.
    bodies: tuple[dict[str, Any], ...]
    #: Their schema, without references.
    schemas: tuple[dict[str, Any], ...]
    is_page: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def call(self, filled: dict[str, str]) -> Call:
        """Return a valid call, with the path parameters `filled` in."""
        path = self.path
        for name, _ in self.parts:
            path = path.replace(f"{{{name}:path}}", filled[name]).replace(f"{{{name}}}", filled[name])
        if not self.bodies:
            return Call(self.method, path)
        return Call(
            self.method, path, headers=(("Content-Type", "application/json"),), body=json.dumps(self.bodies[0]).encode()
        )


def application() -> FastAPI:
    """Build the application with its dashboard, for inspection only."""
    app = build(
        max_body_bytes=1_048_576,
        registry=CollectorRegistry(),
        access_log=AccessLog("console", "info", io.StringIO(), process="api-0"),
    )
    install(app)
    return app


@cache
def routes() -> list[Route]:
    """Return every route, once for each method, except the pages that do not exist without an issuer of tokens."""
    app = application()
    description = app.openapi()
    return [
        _route(one, method, description)
        for one in _flat(app.routes)
        if not one.path.startswith("/dashboard/sign-on")
        for method in sorted({*(one.methods or ())} - {"HEAD"})
    ]


def _flat(routes: Sequence[BaseRoute]) -> Iterator[APIRoute]:
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        else:
            yield from _flat(route.original_router.routes)  # type: ignore[attr-defined]  # of an included router


def _fitting(body: str) -> str:
    """Replace the node, column and class that this application lacks in an example."""
    for theirs, ours in (
        ('"57"', '"13"'),
        ('"17"', '"15"'),
        ('"label": "2"', '"label": "a"'),
        ('"label": "0"', '"label": "a"'),
    ):
        body = body.replace(theirs, ours)
    return body


def _route(route: APIRoute, method: str, description: dict[str, Any]) -> Route:
    path = route.path.replace(":path}", "}")
    operation = description["paths"].get(path, {}).get(method.lower(), {})
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = _resolved(content.get("schema", {}), description)
    schemas = tuple(schema.get("oneOf", [schema] if schema else []))
    given = [one["value"] for one in content.get("examples", {}).values()]
    examples = given or [example for one in schemas for example in one.get("examples", [])]
    bodies = [json.loads(_fitting(json.dumps(one))) for one in examples]
    dependants = list(_all(route.dependant))
    return Route(
        method,
        route.path,
        tuple(name for one in dependants for each in one.query_params for name in _names(each)),
        tuple(name.replace("_", "-") for one in dependants for each in one.header_params for name in _names(each)),
        tuple((each.alias, each.field_info.annotation) for one in dependants for each in one.path_params),
        tuple(bodies),
        schemas,
        not route.include_in_schema and route.path.startswith("/dashboard"),
    )


def _all(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for one in dependant.dependencies:
        yield from _all(one)


def _names(parameter: Any) -> Iterator[str]:
    """Yield the name of a parameter, or of all fields if it is a model."""
    kind = parameter.field_info.annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield from (one.alias or name for name, one in kind.model_fields.items())
    else:
        yield parameter.alias


def _resolved(schema: Any, description: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_resolved(one, description) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _resolved(description["components"]["schemas"][schema["$ref"].rpartition("/")[2]], description)
    return {name: _resolved(one, description) for name, one in schema.items()}


def wrong_queries(route: Route, good: Call, sweep: Sweep, most: int) -> Iterator[Call]:
    """Yield calls with parameters that are unknown, misspelled, duplicated, or of another type."""

    def sent(*pairs: tuple[str, str], wrong: str, taken: bool = False) -> Call:
        return replace(good, query=pairs, wrong=(wrong,), may_be_taken=taken)

    yield sent((UNKNOWN, "1"), wrong=UNKNOWN)
    for name in route.query:
        for value in sweep.some(("1", "2026-11-20", "node", "json"), 2):
            yield sent((name, value), (name, value), wrong=name)
        for misspelled in sweep.some(misspellings(name, route.query), most):
            yield sent((misspelled, "1"), wrong=misspelled)
        for value in sweep.some(VALUES, most):
            call = sent((name, value), wrong=name, taken=not route.is_page or _is_understood(name, value))
            yield replace(call, wrong=(name, _LABELS.get(name, name)))


def _is_understood(name: str, text: str) -> bool:
    """Whether a filter of the list of requests can have this text; other parameters accept anything."""
    if not text.strip():
        return True
    try:
        for choice in (*CHOICES, *QUESTIONS, ORDER):
            if choice.name == name:
                choice.states(text.strip())
        if name in {limit.name for limit in LIMITS}:
            return math.isfinite(float(text))
        if name in dict(DAYS):
            date.fromisoformat(text.strip())
    except ValueError:
        return False
    return True


def wrong_paths(route: Route, good: Call, filled: dict[str, str], sweep: Sweep, most: int) -> Iterator[Call]:
    """Yield calls with path parameters that are not ids, numbers or names, and with an extra slash."""
    yield replace(good, path=f"{good.path}/{UNKNOWN}", may_be_taken=True)
    for name, _ in route.parts:
        for value in sweep.some([one for one in VALUES if one.strip()], most):
            yield replace(route.call(filled | {name: quote(value, safe="")}), may_be_taken=True)


def wrong_headers(route: Route, good: Call, sweep: Sweep, most: int) -> Iterator[Call]:
    """Yield calls with duplicate headers or invalid values."""

    def sent(*headers: tuple[str, str], wrong: str, taken: bool = False) -> Call:
        rest = [one for one in good.headers if one[0] not in dict(headers)]
        return replace(good, headers=(*rest, *headers), wrong=(wrong,), may_be_taken=taken)

    for name in route.headers:
        yield sent((name, "one"), (name, "two"), wrong=name)
        yield sent((name, "one"), (name, "one"), wrong=name)
        for value in sweep.some([one for one in VALUES if one.isprintable()], most):
            yield sent((name, value), wrong=name, taken=True)
    for name, value in HEADERS.items():
        if not (route.is_page and value == KEY):
            yield sent((name, value), (name, value), wrong=name)
    if good.body is not None:
        yield sent(*[("Content-Type", "application/json")] * 2, wrong="Content-Type")
        yield sent(("Content-Encoding", "gzip"), wrong="Content-Encoding")
        for value in ("text/plain", "application/x-www-form-urlencoded", "", "application/json; charset=utf-16"):
            yield sent(("Content-Type", value), wrong="Content-Type")


#: Members in written order, possibly with duplicates.
Members = list[tuple[str, Any]]


def wrong_bodies(route: Route, good: Call, sweep: Sweep, most: int) -> Iterator[Call]:
    """Yield calls with members unknown, misspelled, duplicated, mistyped or missing, and with an unexpected body."""

    def sent(members: Members, *wrong: str, taken: bool = False) -> Call:
        return replace(good, body=_written(members), wrong=wrong, may_be_taken=taken)

    if not route.bodies:
        if not route.is_page:
            headers = (("Content-Type", "application/json"),)
            yield replace(good, headers=headers, body=json.dumps({UNKNOWN: 1}).encode(), wrong=("body",))
        return
    for example in route.bodies:
        members = list(example.items())
        known = {name: one for schema in route.schemas for name, one in schema["properties"].items()}
        yield sent([*members, (UNKNOWN, 1)], UNKNOWN)
        yield sent([(UNKNOWN, [1]), *members], UNKNOWN)
        for name in known:
            value = example.get(name, "x")
            others = [one for one in members if one[0] != name]
            yield sent([*others, (name, value), (name, value)], name)
            yield sent([(name, [["2"]]), *others, (name, value)], name)
            for misspelled in sweep.some(misspellings(name, known), most):
                # If it is required, the refusal may name the missing right name.
                yield sent([*others, (misspelled, value)], misspelled, name)
            for strange in sweep.some(STRANGE, most):
                yield sent([*others, (name, strange)], name, taken=_may_be(known[name], strange))
    yield from _wrong_salts(route, good)


def _wrong_salts(route: Route, good: Call) -> Iterator[Call]:
    """Yield calls with faults below the members of a body: in `salts`, the one member that is an object."""
    if not any("salts" in schema["properties"] for schema in route.schemas):
        return
    salt = "ab" * 16
    inner: list[tuple[Members, str]] = [
        ([("nodes", [("1", salt)]), (UNKNOWN, 1)], UNKNOWN),
        ([("nodes", [("1", salt)]), ("nodes", [("1", salt)])], "nodes"),
        ([("nodes", [("1", salt), ("1", salt[::-1])])], "1"),
        ([("nodes", [("1", salt), ("2", salt)])], "salts"),
        ([("nodes", [("1", salt)]), ("reference", salt)], "salts"),
    ]
    for salts, wrong in inner:
        members: Members = [("kind", "node"), ("nodes", ["1"]), ("salts", salts)]
        yield replace(good, body=_written(members), wrong=(wrong,))


def _may_be(schema: dict[str, Any], value: Any) -> bool:
    """Whether a member of this schema may have the type of `value`, ignoring other rules."""
    types = {one.get("type", "string") for one in (schema, *schema.get("anyOf", ()))}
    if isinstance(value, bool) or value is None:
        return ("null" if value is None else "boolean") in types
    kinds = {int: {"integer", "number"}, float: {"number"}, str: {"string"}, list: {"array"}, dict: {"object"}}
    return bool(types & kinds[type(value)])


def _written(value: Any) -> bytes:
    def text(one: Any) -> str:
        if isinstance(one, list) and one and all(isinstance(each, tuple) for each in one):
            return "{" + ", ".join(f"{json.dumps(name)}: {text(each)}" for name, each in one) + "}"
        return json.dumps(one)

    return text(value).encode()
