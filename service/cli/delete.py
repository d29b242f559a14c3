"""Send deletion requests, and decide on open ones: `lethe delete`, `drill`, `extend`, `handle`, `hold`, …."""

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from lethe_client import AcceptedDrill, Drill
from model_store.datasets.table_names import is_table
from service.cli import table_options
from service.cli.console import (
    ExitStatus,
    Json,
    interrupted,
    note,
    print_result,
    read_lines,
    report,
    show_progress,
    table,
)
from service.cli.requesting import Manner, Reference, SaltsFile, Timeout, Wait, send
from service.cli.server import Home, Key, Url, connect
from service.cli.table_rows import ids_in
from service.domain.figures import FIGURES
from service.domain.formats import number
from service.domain.kinds import Names, RequestKind


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NODE|A,B]...", help="Ids of the nodes, or edges as pairs of ids."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="File with one id or edge per line; - reads stdin. Or a table with a column of ids, or two with the "
            "ends of edges: .parquet, .feather or .csv."
        ),
    ] = None,
    id: table_options.Id = "id",
    source: table_options.Source = "source",
    target: table_options.Target = "target",
    kind: Annotated[
        Literal["node", "edge", "features", "label"],
        typer.Option(help="What to forget: nodes, only their features, edges, or only the labels of nodes."),
    ] = "node",
    reference: Reference = None,
    salts: SaltsFile = None,
    wait: Wait = False,
    timeout: Timeout = 300.0,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Request the deletion of nodes, edges, or only features or labels of nodes.

    A list that is too long for one request is sent in several.

    Examples:

    [bold]./lethe delete 12 57 --reference DSR-17 --wait[/bold]

    [bold]./lethe delete --file ids.txt --salts salts.json[/bold]

    [bold]./lethe delete --kind features 12 57[/bold]   (the nodes stay, and their edges)

    [bold]./lethe delete --kind label 12[/bold]   (the node stays, and is no longer trained on)

    [bold]./lethe delete --kind edge 1,2 4,8[/bold]   (the edges between 1 and 2, and between 4 and 8)

    [bold]./lethe delete --file leavers.parquet --id user_id[/bold]

    In a list, the ends of an edge may be separated by a tab or a space, for ids that contain a comma.
    """
    of_edges = RequestKind(kind).rules.names is Names.EDGES
    pairs: list[tuple[str, str]] = []
    listed = list(names or [])
    if file is not None and is_table(file):
        if of_edges:
            pairs = [(first, second) for first, second in ids_in(file, source, target)]
        else:
            listed += [node for (node,) in ids_in(file, id)]
    elif file is not None:
        listed += read_lines(file)
    named = list(dict.fromkeys(listed))
    if not named and not pairs:
        raise typer.BadParameter("Give the ids to forget, or --file.", param_hint="NODE...")
    edges = list(dict.fromkeys([*map(_pair, named), *pairs])) if of_edges else []
    manner = Manner(salts, wait, timeout, as_json)
    with connect(url, key, home) as client:
        ask = partial(client.request_deletion, kind=kind, reference=reference)
        if edges:
            send(client, edges, lambda part: ask(edges=part), manner)
        else:
            send(client, named, ask, manner)


def _pair(text: str) -> tuple[str, str]:
    """Split an edge into its two ends at the first of tab, comma and space that occurs."""
    separator = next((mark for mark in "\t, " if mark in text), None)
    ends = [end.strip() for end in text.split(separator)] if separator else [text]
    if len(ends) != 2 or not all(ends):
        raise typer.BadParameter(f"{text!r} is not an edge. Give two ids, such as 12,57", param_hint="A,B")
    return ends[0], ends[1]


Reason = Annotated[str, typer.Option(help="Stays in the log forever: do not name a person, node or reference.")]


def handle(
    request_id: Annotated[str, typer.Argument(help="Id of the failed deletion request.")],
    reason: Reason,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Record how a failed deletion request was handled. Its list of ids is then destroyed.

    A later request for the same ids handles it automatically. Requires the scopes deletions:write and audit:read.

    Example: [bold]./lethe handle 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11 --reason "Withdrawn by letter."[/bold]
    """
    with connect(url, key, home) as client:
        handled = client.handle(request_id, reason)
    print_result(handled, as_json, f"{handled.id} handled")


def extend(
    request_id: Annotated[str, typer.Argument(help="Id of an open deletion request that is not late.")],
    until: Annotated[datetime, typer.Option(formats=["%Y-%m-%d"], help="New deadline: its last day (UTC).")],
    reason: Reason,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Extend the deadline of an open deletion request. Requires the scopes deletions:write and audit:read.

    Example: [bold]./lethe extend 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11 --until 2027-01-31 --reason "Many."[/bold]
    """
    end = until.replace(tzinfo=UTC) + timedelta(days=1, seconds=-1)
    with connect(url, key, home) as client:
        extended = client.extend(request_id, end, reason)
    print_result(extended, as_json, f"{extended.id} due {extended.due_at:%Y-%m-%d %H:%M:%S} UTC")


def hold(
    request_id: Annotated[str, typer.Argument(help="Id of a queued request of any kind.")],
    reason: Reason,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Put a queued request on hold, with everything that is queued for the same nodes.

    It is not late while it is held. Requires the scopes deletions:write and audit:read.

    Example: [bold]./lethe hold 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11 --reason "Needed in a lawsuit."[/bold]
    """
    with connect(url, key, home) as client:
        held = client.hold(request_id, reason)
    print_result(held, as_json, f"{held.id} on hold")


def release(
    request_id: Annotated[str, typer.Argument(help="Id of a request on hold.")],
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Release a request from its hold, with what waits behind it. Its deadline moves by the time of the hold.

    Requires the scopes deletions:write and audit:read.

    Example: [bold]./lethe release 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11[/bold]
    """
    with connect(url, key, home) as client:
        released = client.release(request_id)
    print_result(released, as_json, f"{released.id} released, due {released.due_at:%Y-%m-%d %H:%M:%S} UTC")


def retry(
    request_id: Annotated[str, typer.Argument(help="Id of the failed deletion request.")],
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Queue a failed deletion request again, once its cause is fixed (see `audit show`).

    Requires the scopes deletions:write and audit:read.

    Example: [bold]./lethe retry 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11[/bold]
    """
    with connect(url, key, home) as client:
        queued = client.retry(request_id)
    print_result(queued, as_json, f"{queued.id} {queued.status}")


def drill_command(
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

    Canaries are made-up nodes added by `train --canaries`. Each cohort has its own feature column, so whatever the
    model learned from it is in rows of the weights that no other node influences. Exits with 0 if their norm fell
    to 0, with 1 if it did not or could not be read. Requires the scope deletions:write.

    Example: [bold]./lethe drill[/bold]
    """
    with connect(url, key, home) as client:
        with interrupted(
            lambda: "It is unknown whether Lethe accepted the drill: see `GET /drills`, or the dashboard."
        ):
            accepted = client.run_drill()
        _print_accepted_drill(accepted, as_json)
        if not wait:
            return
        left = f"The drill continues by itself: `./lethe audit show {accepted.request_id}` shows its progress."
        with interrupted(lambda: left), show_progress("Waiting for the drill"):
            drill = client.wait_for_drill(accepted.request_id, timeout_s=timeout)
    _print_drill(drill, as_json)
    if not drill.passed:
        report(drill.finding, f"See `./lethe audit show {drill.request_id}`, and `audit recheck` for the store.")
        raise typer.Exit(ExitStatus.FAILED)


def _print_accepted_drill(accepted: AcceptedDrill, as_json: bool) -> None:
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
