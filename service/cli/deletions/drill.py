"""`lethe drill`: have a running Lethe delete the next cohort of canaries, and show what was read from the weights."""

from pathlib import Path
from typing import Annotated

import typer

from lethe_client import AcceptedDrill, Drill
from service.cli.console import Json, doing, interrupted, note, print_result, report, table
from service.cli.exit_status import ExitStatus
from service.cli.server import Home, Key, Url, connect
from service.domain.figures import FIGURES
from service.domain.formats import number


def command(
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the result; exit with 1 if the drill fails.")
    ] = True,
    timeout: Annotated[float, typer.Option(min=0.0, help="Longest wait (seconds).")] = 300.0,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Delete the next cohort of canaries like any other nodes, and show that the weights forget it.

    Canaries are made-up nodes added by `train --canaries`. Each cohort has a feature column of its own, so what the
    model learned from it is in rows of the weights that no other node influences. Exits with 0 if their norm fell to 0,
    with 1 if it did not or could not be read. Requires the scope deletions:write.

    Example: [bold]./lethe drill[/bold]
    """
    with connect(url, key, home) as client:
        with interrupted(
            lambda: "It is unknown whether Lethe accepted the drill: see `GET /drills`, or the dashboard."
        ):
            accepted = client.run_drill()
        _print_accepted(accepted, as_json)
        if not wait:
            return
        left = f"The drill continues by itself: `./lethe audit show {accepted.request_id}` shows its progress."
        with interrupted(lambda: left), doing("Waiting for the drill"):
            drill = client.wait_for_drill(accepted.request_id, timeout_s=timeout)
    _print_drill(drill, as_json)
    if not drill.passed:
        report(drill.finding, f"See `./lethe audit show {drill.request_id}`, and `audit recheck` for the store.")
        raise typer.Exit(ExitStatus.FAILED)


def _print_accepted(accepted: AcceptedDrill, as_json: bool) -> None:
    print_result(accepted, as_json, f"{accepted.request_id} {accepted.status}: cohort {accepted.cohort}")
    cohorts = accepted.cohorts
    for cohort in cohorts.partly_deleted:
        note(f"Cohort {cohort} was skipped: other requests deleted some of its nodes.")
    note(f"{cohorts.remaining} of {cohorts.total} cohorts remain after this one.")


def _print_drill(drill: Drill, as_json: bool) -> None:
    outcome = {True: "passed", False: "failed", None: drill.status}[drill.passed]
    rows = [
        ("result", outcome),
        (FIGURES["channel_norm_before"].label, number(drill.channel_norm_before)),
        (FIGURES["channel_norm_after"].label, number(drill.channel_norm_after)),
    ]
    print_result(drill, as_json, table(f"Drill of cohort {drill.cohort}", ("", ""), rows))
    if drill.passed:
        note(drill.finding)
