"""`lethe drill`: its requests, its output, and its exit statuses."""

from typing import Any

import pytest

from tests.support.clients.command_line import CommandLine
from tests.support.clients.lethe_stub import LetheStub

COHORTS = {"total": 12, "nodes": 4, "remaining": 8, "partly_deleted": [2, 5]}


def drill(status: str, **fields: Any) -> dict[str, Any]:
    return {
        "request_id": "r1",
        "cohort": 3,
        "requested_at": "2026-03-02T09:15:04.120000Z",
        "status": status,
        "finding": "The canaries are being deleted.",
        **fields,
    }


def listed(*drills: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    other = drill("completed", request_id="r0", cohort=1, passed=False)
    return 200, {"model": "cora", "cohorts": COHORTS, "drills": [*drills, other]}


def accepted(stub: LetheStub) -> None:
    stub.answers["POST", "/drills"] = 202, drill("queued", cohorts=COHORTS, salts=None)


LISTED = ("GET", "/drills?limit=20")


def test_a_drill_is_waited_for_and_its_figures_are_shown(lethe: CommandLine, stub: LetheStub) -> None:
    accepted(stub)
    fell = "The weight on the test column fell from 4.125 to 0."
    passed = drill("completed", passed=True, channel_norm_before=4.125, channel_norm_after=0.0, finding=fell)
    stub.answers[LISTED] = [listed(), listed(drill("queued")), listed(drill("applied")), listed(passed)]
    ran = lethe("drill")
    assert ran.status == 0, ran.stderr
    assert stub.asked[0] == ("POST", "/drills", None)
    assert stub.keys[0] == "Bearer the key"
    assert "r1 queued: cohort 3" in ran.stdout
    assert "passed" in ran.stdout
    assert "4.125" in ran.stdout
    assert fell in ran.stderr
    assert "8 of 12 cohorts remain" in ran.stderr
    assert "Cohort 2 was skipped" in ran.stderr
    assert "Cohort 5 was skipped" in ran.stderr


@pytest.mark.parametrize(
    ("ended", "message"),
    [
        (
            drill("completed", passed=False, channel_norm_before=4.0, channel_norm_after=1.0, finding="1 is left."),
            "1 is",
        ),
        (drill("failed", passed=False, finding="The deletion failed."), "The deletion failed."),
        (drill("cancelled", finding="It was withdrawn."), "It was withdrawn."),
    ],
)
def test_what_did_not_pass_exits_with_1_and_says_why(
    lethe: CommandLine, stub: LetheStub, ended: dict[str, Any], message: str
) -> None:
    accepted(stub)
    stub.answers[LISTED] = listed(ended)
    ran = lethe("drill")
    assert ran.status == 1
    assert message in ran.stderr
    assert "audit show r1" in ran.stderr


def test_without_waiting_the_request_is_named_and_nothing_is_claimed(lethe: CommandLine, stub: LetheStub) -> None:
    accepted(stub)
    ran = lethe("drill", "--no-wait")
    assert ran.status == 0
    assert len(stub.asked) == 1
    assert "passed" not in ran.stdout
