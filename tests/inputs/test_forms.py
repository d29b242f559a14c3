"""Every field of a dashboard form is used, or refused by name."""

import html
import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from tests.support.everyday import everyday
from tests.support.inputs.asked import Asked
from tests.support.inputs.forms import forms
from tests.support.inputs.routes import Call, Route, routes
from tests.support.inputs.variations import UNKNOWN, VALUES, Sweep, fault_of, misspellings

FORMS = forms()

Fields = list[tuple[str, str]]


def pages() -> dict[str, Route]:
    return {route.path: route for route in routes() if route.is_page and route.method == "POST"}


def test_every_form_of_the_dashboard_is_swept() -> None:
    assert FORMS.keys() == pages().keys()


@pytest.mark.parametrize("most", everyday((1, 20), 1))
async def test_what_a_form_sends_is_used_or_refused_by_name(ask: Asked, most: int) -> None:
    sweep = Sweep("forms")
    token = await token_of(ask)
    cases = [(one, *case) for one in FORMS for case in faulty(one, sweep, most)]
    for path, fields, wrong in sweep.cases(cases):
        # A form may end the session, or use up an attempt to sign in.
        answer = await ask(sent(ask, path, [("form_token", token), *fields]))
        if answer.status >= 500:
            sweep.find(fields, f"{path} {answer.status}: an error inside")
        elif wrong and (what := fault_of(400 <= answer.status < 500, html.unescape(answer.body), wrong)):
            sweep.find(fields, f"{path} {answer.status}: {what}")
    sweep.judge()


def faulty(path: str, sweep: Sweep, most: int) -> Iterator[tuple[Fields, str | None]]:
    good = [(name, "1") for name in FORMS[path]]
    yield [*good, (UNKNOWN, "1")], UNKNOWN
    for name, value in good:
        yield [*good, (name, value)], name
        others = [one for one in good if one[0] != name]
        for misspelled in sweep.some(misspellings(name, [*FORMS[path], "form_token"]), most):
            yield [*others, (misspelled, value)], misspelled
        for strange in sweep.some(VALUES, most):
            yield [*others, (name, strange)], None


async def token_of(ask: Asked) -> str:
    page = (await ask(Call("GET", "/dashboard/find"))).body
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found
    return found[1]


def sent(ask: Asked, path: str, fields: Fields) -> Call:
    headers = [("Content-Type", "application/x-www-form-urlencoded"), ("Sec-Fetch-Site", "same-origin")]
    if path == "/dashboard/login":
        # There is no session yet: the token is that of the page's cookie.
        token = "a" * 43
        fields = [("form_token", token), *fields[1:]]
        headers.append(("Cookie", f"lethe_login={token}"))
    return Call("POST", pages()[path].call(ask.filled).path, headers=tuple(headers), body=urlencode(fields).encode())
