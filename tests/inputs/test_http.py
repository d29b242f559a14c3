"""Every input of a route of the API or the dashboard is used, or refused by name."""

import html
from collections.abc import Iterator

import pytest

from tests.support.everyday import everyday
from tests.support.inputs.asked import Answer, Asked
from tests.support.inputs.routes import Call, Route, routes, wrong_bodies, wrong_headers, wrong_paths, wrong_queries
from tests.support.inputs.variations import Sweep, fault_of

#: Variations of each name and value; every run takes few, and the slow one many.
MOST = everyday((1, 12), 1)
#: Calls of a run, by the number of variations.
CALLS = {1: 250, 12: 5000}
#: Refusals of inference that name something other than the changed member: an integer that JSON output cannot hold, the
#: unknown parameter itself, or the missing input.
NAMED_OTHERWISE = ("too large an integer", "The parameter 'a'", "The model has one input, 'node'")


@pytest.mark.parametrize("most", MOST)
async def test_what_is_sent_to_a_route_is_used_or_refused_by_name(ask: Asked, most: int) -> None:
    sweep = Sweep("routes")
    calls = [(one, call) for one in routes() for call in wrong(one, ask, sweep, most)]
    for route, call in sweep.cases(calls, CALLS[most]):
        answer = await ask(call)
        if what := judged(route, call, answer):
            sweep.find(call, f"{route} {answer.status}: {what}")
    sweep.judge()


def wrong(route: Route, ask: Asked, sweep: Sweep, most: int) -> Iterator[Call]:
    good = ask.good(route)
    yield from wrong_queries(route, good, sweep, most)
    yield from wrong_paths(route, good, ask.filled, sweep, most)
    yield from wrong_headers(route, good, sweep, most)
    yield from wrong_bodies(route, good, sweep, most)


def judged(route: Route, call: Call, answer: Answer) -> str | None:
    """Return what is wrong with an answer; None if nothing is."""
    if answer.status >= 500 and not route.path.startswith("/readyz"):
        return "an error inside"
    refused = 400 <= answer.status < 500
    if refused and not route.is_page and not answer.is_problem:
        return "refused, but by no problem document"
    # A valid input may be refused for another reason; a page answers 404 for its path alone. The descriptions' examples
    # have columns that this small model lacks.
    is_unfit = "urn:lethe:problem:unfit-features" in answer.body
    elsewhere = (answer.status in (404, 409, 410) or is_unfit) and not (route.is_page and call.query)
    if not call.wrong or (call.may_be_taken and (not refused or elsewhere)):
        return None
    if (
        route.path.startswith("/v2/")
        and answer.status == 400
        and any(reason in answer.body for reason in NAMED_OTHERWISE)
    ):
        return None
    # A list names the filters that it did not apply.
    is_said = route.path == "/dashboard/requests" and "are invalid and were not applied" in answer.body
    return fault_of(refused or is_said, html.unescape(answer.body), *call.wrong)
