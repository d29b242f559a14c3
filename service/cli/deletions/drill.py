"""`lethe drill`: have a running Lethe delete the next cohort of canaries, and show what was read from the weights."""

from pathlib import Path
from typing import Annotated

import typer

from lethe_client import AcceptedDrill, Drill
from service.cli.console import note, number, report, stdout, table
from service.cli.server import Home, Key, Url, connect


def command(
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the result, and exit with 1 if bad.")] = True,
    timeout: Annotated[float, typer.Option(min=0.0, help="Longest wait, in seconds.")] = 300.0,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
) -> None:
    """Delete the next cohort of canaries the ordinary way, and show that the weights forget it.

    Canaries are made-up nodes that `train --canaries` adds, each cohort with a feature column of its own: what the
    model learned from them stands in rows of the weights that nothing else feeds. Exits with 0 when their norm fell
    to 0, with 1 when it did not or could not be read. Needs a key with deletions:write.

    Example: [bold]./lethe drill[/bold]
    """
    with connect(url, key, home) as client:
        accepted = client.run_drill()
        _print_accepted(accepted)
        if not wait:
            return
        drill = client.wait_for_drill(accepted.request_id, timeout_s=timeout)
    _print_result(drill)
    if not drill.passed:
        report(drill.finding, f"See `./lethe audit show {drill.request_id}`, and `audit recheck` for the store.")
        raise typer.Exit(1)


def _print_accepted(accepted: AcceptedDrill) -> None:
    stdout().print(f"{accepted.request_id} {accepted.status}: cohort {accepted.cohort}", markup=False)
    cohorts = accepted.cohorts
    for cohort in cohorts.partly_deleted:
        note(f"Cohort {cohort} is skipped: other requests have deleted a part of it.")
    note(f"{cohorts.remaining} of {cohorts.total} cohorts are left after this one.")


def _print_result(drill: Drill) -> None:
    outcome = {True: "passed", False: "failed", None: drill.status}[drill.passed]
    rows = [
        ("result", outcome),
        ("norm before", number(drill.channel_norm_before)),
        ("norm after", number(drill.channel_norm_after)),
    ]
    stdout().print(table(f"Drill of cohort {drill.cohort}", ("", ""), rows))
    if drill.passed:
        note(drill.finding)
